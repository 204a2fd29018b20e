"""gyre replay, gyre report."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gyre.cli.client import nats_url
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.report_files import summary_table, write_report
from gyre.cli.runs import read_report, read_state

console = Console()


def register(app: typer.Typer) -> None:
    app.command()(replay)
    app.command()(report)


def replay(
    job: str,
    home: Home = DEFAULT_HOME,
    until: Annotated[int | None, typer.Option(help="Stream sequence to stop at.")] = None,
) -> None:
    """Rebuild the scheduler's state of a job from the log alone and print it as JSON."""
    started = time.perf_counter()
    state, num = asyncio.run(read_state(nats_url(home), job, until))
    seconds = time.perf_counter() - started
    shown = {
        "job": state.job,
        "status": state.status,
        "phase": state.phase,
        "sequence": state.sequence,
        "version": state.version,
        "published": state.published,
        "lineage": state.lineage,
        "steps_done": state.num_steps_done,
        "training": asdict(state.training),
        "heldout": asdict(state.heldout),
        "waterlevel": state.training.waterlevel,
        "ready_groups": state.num_ready_unclaimed,
        "cells": {cell.cell: cell.role for cell in state.everyone},
        "batch": state.batch.batch if state.batch else None,
    }
    typer.echo(json.dumps(shown, indent=2))
    typer.echo(f"{num} facts folded in {seconds:.2f} s", err=True)


def report(
    job: str,
    home: Home = DEFAULT_HOME,
    out: Annotated[Path | None, typer.Option(help="Directory to write to.")] = None,
) -> None:
    """Write report.json and report.html of a job and print its outcome."""
    folded = asyncio.run(read_report(nats_url(home), job))
    directory = out or Path("out") / job
    write_report(folded, directory)
    console.print(summary_table(folded))
    console.print(f"report: {directory / 'report.html'}", highlight=False)
