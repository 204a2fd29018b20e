"""gyre whatif: a recorded run's executions under another schedule."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import File, JobOrNone
from gyre.cli.traces import read_trace
from gyre.simulator import StalledError
from gyre.simulator.spec import SpecError
from gyre.simulator.summary import Summary
from gyre.simulator.whatif import WhatIf, what_if

console = Console()


def register(app: typer.Typer) -> None:
    app.command(name="whatif")(whatif_command)


def whatif_command(
    job: JobOrNone = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, as schedule.mu=2 or cells.count=4; repeatable."),
    ] = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate a recorded run under another schedule, on its own executions and speeds.

    The run's own schedule is simulated first: the calibration error is how far that is from what
    happened.
    """
    wanted = dict(_change(text) for text in changes or [])
    recorded = asyncio.run(read_trace(job, home, file))
    try:
        result = what_if(recorded, wanted)
    except (SpecError, StalledError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_as_json(result, wanted), indent=1))
        return
    console.print(_table(result))
    console.print(
        f"calibration error {result.calibration_error:+.1%}: this run's own schedule simulated, "
        "against what happened",
        highlight=False,
    )


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--set {text}: write NAME=VALUE, as schedule.mu=2")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise CommandError(f"--set {text}: {value!r} is no YAML value") from error


def _as_json(result: WhatIf, wanted: dict[str, Any]) -> dict[str, Any]:
    return {
        "recorded_s": result.recorded_s,
        "own": result.own.row(),
        "calibration_error": result.calibration_error,
        "changes": wanted,
        "changed": result.changed.row() if result.changed else None,
    }


def _table(result: WhatIf) -> Table:
    table = Table(
        "", "policy", "steps", "total s", "step s", "mean d", "rollout idle", "train idle"
    )
    num = len(result.own.step_h)
    table.add_row("recorded", result.own.policy, str(num), *_times(result.recorded_s, num))
    table.add_row("simulated", *_cells(result.own))
    if result.changed is not None:
        table.add_row("changed", *_cells(result.changed))
    return table


def _cells(run: Summary) -> tuple[str, ...]:
    num = len(run.step_h)
    return (
        run.policy,
        str(num),
        *_times(run.total_s, num),
        "" if run.mean_staleness is None else f"{run.mean_staleness:.3f}",
        f"{run.rollout_idle:.1%}",
        f"{run.training_idle:.1%}",
    )


def _times(total_s: float, num: int) -> tuple[str, str]:
    return f"{total_s:.1f}", f"{total_s / num:.2f}"
