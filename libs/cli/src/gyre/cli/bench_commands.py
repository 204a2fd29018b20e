"""gyre bench: the benchmarks' figures as one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError

console = Console()


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    directory: Annotated[Path, typer.Argument(help="Where the benchmarks wrote.")] = Path(
        "out/bench"
    ),
) -> None:
    """Print what `make bench` measured. Exit status 1 when a target was missed."""
    files = sorted(directory.glob("*.json"))
    if not files:
        raise CommandError(f"{directory} holds no figures: run `make bench` first")
    table = Table("benchmark", "figure", "value", "target", "ok")
    missed = False
    for file in files:
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
            missed |= not result["ok"]
            _add_rows(table, result)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"{file}: no figures of a benchmark: {error!r}") from error
    console.print(table)
    if missed:
        raise typer.Exit(1)


def _add_rows(table: Table, result: dict[str, Any]) -> None:
    for name, value in result["figures"].items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        target = result["targets"].get(name, "")
        table.add_row(result["name"], name, shown, str(target), "yes" if result["ok"] else "NO")
