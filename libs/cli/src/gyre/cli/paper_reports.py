"""gyre simulate --ablation, --speedups: the paper's tables beside the simulator's."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.simulator.paper.ablation import Row, parameters, simulate_rows
from gyre.simulator.paper.speedups import ASSUMPTIONS, cases, simulate_case
from gyre.simulator.paper.statistics import QUERY, SLACK, Measured, measure

console = Console()


def report_ablation(seeds: range, *, as_json: bool) -> None:
    """Table 2 and the workload's statistics, one parameter set for all."""
    fitted = parameters()
    rows, measured = simulate_rows(fitted, seeds), measure(fitted, seeds)
    if as_json:
        typer.echo(json.dumps(_ablation_json(rows, measured, seeds), indent=1))
        return
    table = Table("row", "simulated h", "± h", "paper h", "error")
    for row in rows:
        table.add_row(
            row.id,
            f"{row.simulated_h:.2f}",
            f"{row.standard_error_h:.2f}",
            f"{row.paper_h:.2f}",
            f"{row.error:+.1%}",
        )
    console.print(table)
    table = Table("statistic", "simulated", "paper", "error")
    for statistic in measured.statistics:
        shown = statistic.as_json()
        table.add_row(
            statistic.name,
            f"{statistic.simulated:.4f}",
            f"{statistic.paper:.4f}",
            f"{shown['error']:+.1%}",
        )
    table.add_row("slack", f"{measured.slack:.4f}", f"{measured.paper_slack:.4f}", "")
    console.print(table)
    console.print(f"query: {QUERY}\nslack: {SLACK}", highlight=False)


def _ablation_json(rows: list[Row], measured: Measured, seeds: range) -> dict[str, Any]:
    return {
        "rows": [row.as_json() for row in rows],
        "statistics": [statistic.as_json() for statistic in measured.statistics],
        "query_duration": QUERY,
        "e0_slack": {
            "simulated": measured.slack,
            "paper": measured.paper_slack,
            "points": 100 * (measured.slack - measured.paper_slack),
            "definition": SLACK,
        },
        "seeds": len(seeds),
        "parameters": parameters(),
    }


def report_speedups(seeds: range, *, as_json: bool) -> None:
    """Table 1 and the 48-step figures, with what the digest leaves open."""
    fitted = parameters()
    rows = [simulate_case(case, fitted, seeds) for case in cases(fitted)]
    if as_json:
        typer.echo(json.dumps({"rows": rows, "assumptions": ASSUMPTIONS}, indent=1))
        return
    table = Table(
        "workload", "steps", "mean d", "gyre h", "vs async", "paper", "vs colocate", "paper"
    )
    for row in rows:
        table.add_row(
            row["workload"],
            str(row["steps"]),
            f"{row['staleness']:g}",
            f"{row['hours']['gyre']:.1f}",
            f"{row['vs_async']:.2f}",
            _range(row["paper_vs_async"]),
            f"{row['vs_colocate']:.2f}",
            _range(row["paper_vs_colocate"]),
        )
    console.print(table)
    for assumption in ASSUMPTIONS:
        console.print(f"assumed: {assumption}", highlight=False)


def _range(values: tuple[float, float]) -> str:
    low, high = values
    return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"
