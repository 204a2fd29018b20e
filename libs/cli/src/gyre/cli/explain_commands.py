"""gyre why, gyre staleness: a run explained from its log."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gyre.cli import instants
from gyre.cli.errors import CommandError
from gyre.cli.explain_text import staleness_tables, why_lines
from gyre.cli.instants import Cut, parse_instant
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import File, JobOrNone, Run, open_run
from gyre.contracts.envelope import Decision
from gyre.core.explain import (
    Explanation,
    Journeys,
    StalenessReport,
    TurningPoint,
    UnknownCell,
    explain,
    staleness_report,
    turning_point,
)
from gyre.core.explain.decisions import BeforeDecision

console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(why)
    app.command()(staleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What `why` found. decided: the recorded decision that the instant names, with its sequence;
    then the explanation is of the state that it was based on."""

    explanation: Explanation
    decided: tuple[int, Decision] | None
    points: tuple[TurningPoint, ...]


def why(
    job: JobOrNone = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    at: Annotated[
        str | None,
        typer.Option(
            help=f"The moment asked about: {instants.HELP} A decision's sequence: itself."
        ),
    ] = None,
    cell: Annotated[int | None, typer.Option(help="A cell; else the one whose turn it is.")] = None,
    as_json: Json = False,
) -> None:
    """Say why a cell joins training, or does not: both sides of eq. (2) or (3), the supply timer,
    what is missing, and what a starving burst waits for."""
    cut = Cut(parse_instant(at) if at is not None else None)
    told = asyncio.run(_why(job, home, file, cut, cell))
    if as_json:
        typer.echo(json.dumps(_as_json(told), indent=2))
        return
    for line in why_lines(told.explanation, told.decided, told.points):
        typer.echo(line)


async def _why(job: str | None, home: Path, file: Path | None, cut: Cut, cell: int | None) -> Told:
    async with open_run(job, home, file) as run:
        reading = await _read(run, cut)
    if reading.journeys.state.spec is None:
        raise CommandError(f"no fact of job {run.job!r} up to there")
    now = reading.last
    if cut.instant is None and run.live and not reading.journeys.state.finished:
        now = time.time()
    elif cut.time() is not None:
        now = cut.time() or now
    state = reading.journeys.state
    if reading.decided is not None:
        state, now = reading.before.state, reading.decided[1].now
    try:
        explanation = explain(state, now, cell, reading.journeys.executions)
    except UnknownCell as error:
        raise CommandError(str(error)) from error
    points = (point for point in reading.points if cell is None or point.cell in (None, cell))
    return Told(explanation=explanation, decided=reading.decided, points=tuple(points))


@dataclass(slots=True)
class _Reading:
    """last: time of the last fact read. decided: the decision at the very sequence asked about."""

    journeys: Journeys
    before: BeforeDecision
    last: float = 0.0
    points: list[TurningPoint] = field(default_factory=list)
    decided: tuple[int, Decision] | None = None


async def _read(run: Run, cut: Cut) -> _Reading:
    reading = _Reading(Journeys(run.job), BeforeDecision(run.job))
    async for fact in run.facts(cut.until):
        if cut.beyond(fact):
            break
        based_on = reading.before.see(fact.sequence, fact.body)
        reading.journeys.fold_fact(fact.sequence, fact.envelope)
        reading.last = fact.envelope.time
        point = turning_point(reading.journeys.state, fact.sequence, fact.body)
        if point is not None:
            reading.points.append(point)
        if fact.sequence == cut.until and based_on is not None:
            assert isinstance(fact.body, Decision)
            reading.decided = (fact.sequence, fact.body)
    return reading


def _as_json(told: Told) -> dict[str, Any]:
    explanation = told.explanation
    shown = asdict(explanation) | {"starts": explanation.starts}
    if explanation.burst_end is not None:
        shown["burst_end"]["left"] = explanation.burst_end.left
    if explanation.waiting is not None:
        shown["waiting"]["text"] = explanation.waiting.text()
    if told.decided is not None:
        sequence, decision = told.decided
        shown["decision"] = {"sequence": sequence, "type": decision.TYPE}
        shown["decision"] |= decision.model_dump(mode="json")
    return shown | {"turning_points": [asdict(point) for point in told.points]}


def staleness(
    job: JobOrNone = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it: a file that ends in .svg or .png.")
    ] = None,
) -> None:
    """Print each group's staleness and where its time went, and the mean against the identity."""
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise CommandError(f"--plot {plot}: give a file that ends in .svg or .png")
    told = asyncio.run(_staleness(job, home, file))
    if plot is not None:
        from gyre.cli.plots import save_staleness

        try:
            save_staleness(told, plot)
        except OSError as error:
            raise CommandError(f"--plot {plot}: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(told.as_json(), indent=2))
        return
    for table in staleness_tables(told):
        console.print(table)


async def _staleness(job: str | None, home: Path, file: Path | None) -> StalenessReport:
    async with open_run(job, home, file) as run:
        journeys = Journeys(run.job)
        async for fact in run.facts():
            journeys.fold_fact(fact.sequence, fact.envelope)
        async for fact in run.calls():
            journeys.fold_call(fact.envelope)
    if journeys.state.spec is None:
        raise CommandError(f"no fact of job {run.job!r} in the log")
    return staleness_report(journeys)
