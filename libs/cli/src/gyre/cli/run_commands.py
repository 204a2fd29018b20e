"""gyre replay, gyre report, gyre compare."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.cli import instants
from gyre.cli.errors import CommandError
from gyre.cli.forks_command import alarm_lines
from gyre.cli.instants import Cut, parse_instant
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.report_delivery import delivery_table, lost_table, quarantine_table
from gyre.cli.report_files import emulation_in_words, summary_table, write_report
from gyre.cli.report_objective import objective_table, write_executions
from gyre.cli.report_switches import phases_table, switches_table
from gyre.cli.runs import File, JobOrNone, Run, fold_report, open_run
from gyre.core.explain import Difference, Recheck, RunClock, RunTimes, waiting_for
from gyre.core.report import RunReport
from gyre.core.scheduling import JobState, evolve
from gyre.embedded.paths import StackPaths

console = Console()


def register(app: typer.Typer) -> None:
    app.command()(replay)
    app.command()(report)
    app.command()(compare)


def replay(
    job: JobOrNone = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    until: Annotated[str | None, typer.Option(help=f"Where to stop: {instants.HELP}")] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Decide every recorded decision again instead.")
    ] = False,
) -> None:
    """Rebuild the scheduler's state of a job from the log alone and print it as JSON.

    With --diff print the first recorded decision that is decided otherwise now, exit status 1.
    """
    started = time.perf_counter()
    cut = Cut(parse_instant(until) if until is not None else None)
    state, recheck, num = asyncio.run(_replay(job, home, file, cut, diff))
    seconds = time.perf_counter() - started
    if recheck is None:
        typer.echo(json.dumps(_shown(state), indent=2))
    elif recheck.first is None:
        typer.echo(f"no decision differs: {recheck.num} decisions")
    else:
        _print_difference(recheck.first)
    typer.echo(f"{num} facts folded in {seconds:.2f} s", err=True)
    if recheck is not None and recheck.first is not None:
        raise typer.Exit(1)


async def _replay(
    job: str | None, home: Path, file: Path | None, cut: Cut, diff: bool
) -> tuple[JobState, Recheck | None, int]:
    async with open_run(job, home, file) as run:
        state, num = JobState(job=run.job), 0
        recheck = Recheck(run.job) if diff else None
        async for fact in run.facts(cut.until):
            if cut.beyond(fact):
                break
            if recheck is None:
                evolve(state, fact.sequence, fact.body)
            else:
                recheck.see(fact.sequence, fact.body)
            num += 1
        if num == 0:
            raise CommandError(f"no fact of job {run.job!r} up to there")
        return state, recheck, num


def _shown(state: JobState) -> dict[str, Any]:
    return {
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
        "capacity": state.serving_capacity,
        "ready_groups": state.num_ready_unclaimed,
        "supply_since": state.supply_since,
        "cells": {cell.cell: cell.role for cell in state.everyone},
        "batch": state.batch.batch if state.batch else None,
        "burst": state.burst.burst if state.burst else None,
        "paused": state.paused,
        "waiting_for": starved.text() if (starved := waiting_for(state)) else None,
    }


def _print_difference(difference: Difference) -> None:
    recorded, decided = difference.recorded, difference.decided
    typer.echo(
        f"decision {recorded.TYPE} at {difference.sequence} differs "
        f"(based on {recorded.based_on}, now {recorded.now})"
    )
    for name, (old, new) in difference.fields().items():
        typer.echo(f"  {name}: recorded {old!r}, decided {new!r}")
    if decided is None or decided.TYPE != recorded.TYPE:
        typer.echo(f"  recorded: {recorded.model_dump_json()}")
        again = f"{decided.TYPE} {decided.model_dump_json()}" if decided else "nothing"
        typer.echo(f"  decided: {again}")


def report(
    job: JobOrNone = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead.")] = False,
) -> None:
    """Write report.json and report.html of a job and print its outcome."""
    folded = asyncio.run(_report(job, home, file))
    directory = out or Path("out") / folded.job
    summary = write_report(folded, directory)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console.print(summary_table(folded))
    if folded.deliveries.steps:
        console.print(delivery_table(folded.deliveries))
    if folded.deliveries.quarantined:
        console.print(quarantine_table(folded.deliveries))
    if folded.deliveries.lost_facts:
        console.print(lost_table(folded.deliveries))
    if folded.objective.steps:
        console.print(objective_table(folded.objective))
    if folded.switches.rows:
        console.print(switches_table(folded))
    if folded.switches.phases.by_name:
        console.print(phases_table(folded))
    for line in alarm_lines(folded.alarms()):
        typer.echo(line)
    blobs = DirectoryBlobStore(StackPaths.of(home).home / "blobs")
    executions = directory / "executions.jsonl"
    num_written, num_recorded = write_executions(folded.objective, blobs, executions)
    console.print(f"report: {directory / 'report.html'}", highlight=False)
    if num_recorded:
        told = f"s_i and m_i of {num_written} of {num_recorded} steps' executions: {executions}"
        console.print(told, highlight=False)


async def _report(job: str | None, home: Path, file: Path | None) -> RunReport:
    async with open_run(job, home, file) as run:
        return await fold_report(run)


def compare(
    runs: Annotated[list[str], typer.Argument(help="Jobs' ids, or files of exported runs.")],
    home: Home = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print several runs' step times side by side, with their policies and totals."""
    times = [asyncio.run(_times(*_named(name), home)) for name in runs]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in times], indent=2))
    else:
        console.print(_comparison(times))


def _named(name: str) -> tuple[str | None, Path | None]:
    """(job, file) of what the user named."""
    return (None, Path(name)) if Path(name).is_file() else (name, None)


async def _times(job: str | None, file: Path | None, home: Path) -> RunTimes:
    async with open_run(job, home, file) as run:
        return (await _clock(run)).times()


async def _clock(run: Run) -> RunClock:
    clock = RunClock(run.job)
    async for fact in run.facts():
        clock.fold_fact(fact.sequence, fact.envelope)
    return clock


def _comparison(times: list[RunTimes]) -> Table:
    """One column a run. The last row is each training time over the shortest."""
    table = Table("figure", *(one.job for one in times))
    table.add_row("policy", *(_policy(one) for one in times))
    table.add_row("status", *(one.status for one in times))
    table.add_row("speeds", *map(_speeds, times))
    for step in range(max((len(one.step_s) for one in times), default=0)):
        cells = (one.step_s[step] if step < len(one.step_s) else None for one in times)
        table.add_row(f"step {step + 1}, s", *map(_seconds, cells))
    means = [sum(one.step_s) / len(one.step_s) if one.step_s else None for one in times]
    table.add_row("mean step, s", *map(_seconds, means))
    table.add_row("first dispatch to last publication, s", *(_seconds(o.training_s) for o in times))
    table.add_row("submission to end, s", *(_seconds(one.total_s) for one in times))
    table.add_row("mean staleness", *map(_staleness, times))
    known = [one.training_s for one in times if one.training_s]
    shares = (one.training_s / min(known) if one.training_s else None for one in times)
    table.add_row("training time over the shortest", *map(_seconds, shares))
    return table


def _policy(one: RunTimes) -> str:
    return one.policy if one.streaming else f"{one.policy}, no streaming"


def _speeds(one: RunTimes) -> str:
    return f"emulated: {emulation_in_words(one.emulation)}" if one.emulation else "own"


def _staleness(one: RunTimes) -> str:
    mean = "-" if one.mean_staleness is None else f"{one.mean_staleness:.3f}"
    return f"{mean} (expected {one.expected_staleness:g})"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
