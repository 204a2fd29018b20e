"""gyre simulate: the live decider in virtual time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME
from gyre.cli.paper_reports import report_ablation, report_speedups
from gyre.cli.simulation_plots import checked_plot, plot
from gyre.cli.traces import read_trace
from gyre.contracts.schedule import PolicyName
from gyre.core.scheduling.policies import POLICIES
from gyre.simulator import StalledError
from gyre.simulator.outcome import Outcome
from gyre.simulator.spec import SimulationSpec, SpecError, parse
from gyre.simulator.summary import Summary, mean_and_error, simulate, summarize
from gyre.simulator.trace import Trace

console = Console()

# Enough that a row's standard error stays below one percent.
_PAPER_SEEDS = 8


def register(app: typer.Typer) -> None:
    app.command(name="simulate")(simulate_command)


def simulate_command(
    spec: Annotated[Path | None, typer.Argument(help="What to simulate, YAML.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Instead of the file's; may be repeated.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many runs of each; 1 of a file, else 8.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Role timeline and waterlevel of the first seed.")
    ] = None,
    ablation: Annotated[bool, typer.Option(help="The paper's table 2 instead.")] = False,
    speedups: Annotated[bool, typer.Option(help="The paper's table 1 instead.")] = False,
) -> None:
    """Run a job's schedule in virtual time on the live decider: hours, staleness, idle shares."""
    if (spec is not None) + ablation + speedups != 1:
        raise CommandError("give one of SPEC.yaml, --ablation, --speedups")
    if spec is None:
        if policy or plot_file is not None:
            raise CommandError("--policy, --plot: they belong to a SPEC.yaml")
        report = report_ablation if ablation else report_speedups
        report(range(seeds or _PAPER_SEEDS), as_json=as_json)
        return
    if plot_file is not None:
        checked_plot(plot_file)
    loaded = load_simulation(spec)
    names = tuple(_policy(name) for name in policy) if policy else (None,)
    began = time.perf_counter()
    try:
        recorded = _recorded(spec, loaded)
        rows, drawn = _simulate(loaded, names, seeds or 1, recorded, record=plot_file is not None)
    except (SpecError, StalledError) as error:
        raise CommandError(f"{spec}: {error}") from error
    seconds = time.perf_counter() - began
    if plot_file is not None:
        plot(drawn, plot_file)
    if as_json:
        typer.echo(json.dumps({name: _policy_json(runs) for name, runs in rows.items()}, indent=1))
        return
    console.print(_table(rows))
    events = sum(run.num_events for runs in rows.values() for run in runs)
    console.print(f"{events:,} events in {seconds:.2f} s", highlight=False)


def _recorded(spec: Path, loaded: SimulationSpec) -> Trace | None:
    """The recorded run that the file names, by a path relative to the file."""
    if loaded.trace is None:
        return None
    return asyncio.run(read_trace(None, DEFAULT_HOME, spec.parent / loaded.trace))


def _simulate(
    loaded: SimulationSpec,
    names: Sequence[PolicyName | None],
    num_seeds: int,
    recorded: Trace | None,
    *,
    record: bool,
) -> tuple[dict[str, list[Summary]], dict[str, Outcome]]:
    """Summaries by policy and, to be drawn, each policy's first run."""
    rows: dict[str, list[Summary]] = {}
    first: dict[str, Outcome] = {}
    for name in names:
        prepared = loaded.job(name, recorded.speeds if recorded else None)
        chosen = prepared.spec.schedule.policy
        for seed in range(loaded.seed, loaded.seed + num_seeds):
            drawn = record and chosen not in first
            workload = recorded or loaded.drawn(prepared.spec, seed)
            outcome = simulate(prepared, workload, record=drawn)
            rows.setdefault(chosen, []).append(summarize(prepared.spec, outcome, seed))
            if drawn:
                first[chosen] = outcome
    return rows, first


def load_simulation(path: Path) -> SimulationSpec:
    """Raises CommandError with one line for whatever is wrong with the file."""
    raw = load_mapping(path)
    try:
        return parse(raw)
    except SpecError as error:
        raise CommandError(f"{path}: {error}") from error


def load_mapping(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{path}: is no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise CommandError(f"{path}: must be a mapping of sections")
    return raw


def _policy(name: str) -> PolicyName:
    for known in POLICIES:
        if known == name:
            return known
    raise CommandError(f"--policy {name}: choose of {', '.join(POLICIES)}")


def _policy_json(runs: list[Summary]) -> dict[str, Any]:
    total, error = mean_and_error([run.total_h for run in runs])
    return {"total_h": total, "total_h_error": error, "runs": [run.row() for run in runs]}


def _table(rows: dict[str, list[Summary]]) -> Table:
    table = Table(
        "policy",
        "total h",
        "± h",
        "bound h",
        "step h",
        "mean d",
        "identity",
        "idle slots",
        "idle train",
    )
    for name, runs in rows.items():
        total, error = mean_and_error([run.total_h for run in runs])
        staleness = [run.mean_staleness for run in runs if run.mean_staleness is not None]
        table.add_row(
            name,
            f"{total:.2f}",
            f"{error:.2f}",
            f"{mean_and_error([run.bound_h for run in runs])[0]:.2f}",
            f"{total / len(runs[0].step_h):.3f}",
            f"{mean_and_error(staleness)[0]:.3f}",
            f"{runs[0].expected_staleness:.3f}",
            f"{mean_and_error([run.rollout_idle for run in runs])[0]:.1%}",
            f"{mean_and_error([run.training_idle for run in runs])[0]:.1%}",
        )
    return table
