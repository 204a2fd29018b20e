"""gyre forks: where executions did not go on where they had been, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import File, JobOrNone, Run, open_run
from gyre.contracts.alarms import AlarmsSection
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.core.forks import ForkReport, Forks

console = Console()


def register(app: typer.Typer) -> None:
    app.command()(forks)


def forks(
    job: JobOrNone = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the calls that did not continue an earlier one, by reason and by role of the request,
    and warn when too many have no explanation."""
    name, report = asyncio.run(_forks(job, home, file))
    if as_json:
        typer.echo(json.dumps({"job": name} | asdict(report), indent=2))
        return
    if report.rows:
        console.print(_reasons(name, report))
        console.print(_executions(report))
    typer.echo(summary_line(report))
    for line in alarm_lines(report.alarms):
        typer.echo(line)


async def _forks(job: str | None, home: Path, file: Path | None) -> tuple[str, ForkReport]:
    async with open_run(job, home, file) as run:
        counted = Forks()
        limits = await _limits(run)
        async for fact in run.calls():
            counted.fold(fact.body)
        return run.job, counted.report(limits)


async def _limits(run: Run) -> AlarmsSection:
    """The job's own; the defaults where the run does not hold its job."""
    async for fact in run.facts():
        if isinstance(fact.body, JobSubmitted):
            return fact.body.spec.alarms
    return AlarmsSection()


def summary_line(report: ForkReport) -> str:
    """Calls, forks and the share of those that nothing explains."""
    if not report.num_calls:
        return "no calls in this log"
    return (
        f"{report.num_calls} calls, {report.num_forks} forks, {report.num_unexplained} without an "
        f"explanation ({report.unexplained_share:.2%} of the calls)"
    )


def alarm_lines(alarms: Iterable[str]) -> Iterator[str]:
    """One warning line each."""
    yield from (f"warning: {alarm}" for alarm in alarms)


def _reasons(job: str, report: ForkReport) -> Table:
    table = Table("reason", "explained", title=f"job {job}: forks by reason")
    table.add_column("forks", justify="right")
    roles = list(report.calls_by_role)
    for role in roles:
        table.add_column(role, justify="right")
    for row in report.rows:
        counts = (str(row.by_role.get(role, 0)) for role in roles)
        table.add_row(row.reason, "yes" if row.explained else "no", str(row.num), *counts)
    calls = (str(report.calls_by_role[role]) for role in roles)
    table.add_section()
    table.add_row("all calls", "", str(report.num_calls), *calls)
    return table


def _executions(report: ForkReport) -> Table:
    table = Table("execution", title="executions with the most")
    for name in ("unexplained", "forks", "calls"):
        table.add_column(name, justify="right")
    for one in report.worst:
        counts = (one.num_unexplained, one.num_forks, one.num_calls)
        table.add_row(one.execution, *map(str, counts))
    return table
