"""gyre plan: cells and schedule for a node budget and a staleness."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import File
from gyre.cli.simulate_commands import load_mapping
from gyre.cli.traces import read_trace
from gyre.simulator.plan import Option, Plan, Planner
from gyre.simulator.planfile import PlanFile, parse_plan
from gyre.simulator.spec import SpecError

console = Console()

# Rows shown of what was tried.
_SHOWN = 8


def register(app: typer.Typer) -> None:
    app.command(name="plan")(plan_command)


def plan_command(
    job: Annotated[Path, typer.Argument(help="A job file with a `plan` section.")],
    run: Annotated[
        str | None, typer.Option(help="A recorded job whose executions are the workload.")
    ] = None,
    file: File = None,
    home: Home = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend cells, phi, mu, rho_min and tau for a node budget and a mean staleness.

    Every candidate is simulated on the live decider. With a recorded run, one of its cells is one
    node.
    """
    raw = load_mapping(job)
    try:
        plan = _planner(parse_plan(raw), run, file, home).plan()
    except SpecError as error:
        raise CommandError(f"{job}: {error}") from error
    if as_json:
        typer.echo(json.dumps(_as_json(plan), indent=1))
        return
    _show(plan)


def _planner(given: PlanFile, run: str | None, file: Path | None, home: Path) -> Planner:
    if run is not None or file is not None:
        trace = asyncio.run(read_trace(run, home, file))
        return Planner(
            section=given.section,
            schedule=given.schedule,
            workload=lambda spec, seed: trace,
            speeds=trace.speeds,
        )
    return Planner(
        section=given.section,
        schedule=given.schedule,
        workload=given.section.given_workload(),
        speeds=given.section.given_speeds,
    )


def _show(plan: Plan) -> None:
    best = plan.best.candidate
    console.print(
        f"{best.policy}, {len(best.nodes)} cells of {best.nodes[0]:g} nodes, "
        f"phi {best.phi:g}, mu {best.mu}, rho_min {best.rho_min:g}, tau_s {best.tau_s:g}: "
        f"{plan.best.hours:.2f} h at mean staleness {best.staleness:g}",
        highlight=False,
    )
    for warning in plan.warnings:
        console.print(f"warning: {warning}", highlight=False)
    table = Table("policy", "cells", "phi", "mu", "hours", "vs best", "idle slots", "idle train")
    for option in (*plan.options[:_SHOWN], *plan.baselines):
        table.add_row(*_row(option, plan.best))
    console.print(table)
    table = Table("changed", "value", "hours", "against best")
    for name, option in plan.sensitivity:
        change = option.hours / plan.best.hours - 1
        table.add_row(name, _value(name, option), f"{option.hours:.2f}", f"{change:+.1%}")
    console.print(table)
    for name, why in plan.refused[:_SHOWN]:
        console.print(f"refused: {name}: {why}", highlight=False)


def _row(option: Option, best: Option) -> tuple[str, ...]:
    candidate = option.candidate
    return (
        candidate.policy,
        f"{len(candidate.nodes)} x {candidate.nodes[0]:g}",
        f"{candidate.phi:g}",
        str(candidate.mu),
        f"{option.hours:.2f}",
        f"{option.hours / best.hours - 1:+.1%}",
        f"{option.summary.rollout_idle:.1%}",
        f"{option.summary.training_idle:.1%}",
    )


def _value(name: str, option: Option) -> str:
    candidate = option.candidate
    match name:
        case "rho_min":
            return f"{candidate.rho_min:g}"
        case "tau_s":
            return f"{candidate.tau_s:g}"
        case "cells":
            return f"{len(candidate.nodes)} x {candidate.nodes[0]:g}"
        case _:
            return f"{candidate.phi:g}, {candidate.mu}"


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "best": _option_json(plan.best),
        "warnings": plan.warnings,
        "options": [_option_json(option) for option in plan.options],
        "baselines": [_option_json(option) for option in plan.baselines],
        "sensitivity": [
            {"changed": name, **_option_json(option)} for name, option in plan.sensitivity
        ],
        "refused": [{"candidate": name, "why": why} for name, why in plan.refused],
    }


def _option_json(option: Option) -> dict[str, Any]:
    return {
        **asdict(option.candidate),
        "hours": option.hours,
        "expected_staleness": option.candidate.staleness,
        "mean_staleness": option.summary.mean_staleness,
        "rollout_idle": option.summary.rollout_idle,
        "training_idle": option.summary.training_idle,
    }
