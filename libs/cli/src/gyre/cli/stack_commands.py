"""gyre up, down, status, stop, start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.options import DEFAULT_HOME, Home
from gyre.embedded import control

console = Console()


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(stop)
    app.command()(start)


def up(
    home: Home = DEFAULT_HOME,
    cells: Annotated[int, typer.Option(min=1, help="Cell agents to start.")] = 3,
) -> None:
    """Start the stack, or find it running, and wait until it is ready."""
    info = start_stack(home=home, cells=cells, console=console)
    console.print(f"ready: scheduler {info.urls['scheduler']}, proxy {info.urls['proxy']}")


def start_stack(*, home: Path, cells: int, console: Console) -> control.StackInfo:
    """`control.up` with one line for each process that becomes ready."""
    shown: set[str] = set()

    def show(rows: Sequence[control.ProcessStatus]) -> None:
        for row in rows:
            if row.state in ("ready", "finished") and row.name not in shown:
                shown.add(row.name)
                console.print(f"  {row.name} ready", highlight=False)

    console.print("starting the stack")
    return control.up(home, cells=cells, on_progress=show)


def down(
    home: Home = DEFAULT_HOME,
    purge: Annotated[bool, typer.Option(help="Also delete its state.")] = False,
) -> None:
    """Stop the stack and everything it started."""
    was_running = control.down(home, purge=purge)
    console.print("stopped" if was_running else "nothing was running")


def status(home: Home = DEFAULT_HOME) -> None:
    """List the stack's processes. Exit status 1 when none runs."""
    rows = control.status(home)
    if not rows:
        console.print(f"no stack runs in {home}")
        raise typer.Exit(1)
    table = Table("process", "state", "pid", "restarts")
    for row in rows:
        table.add_row(row.name, row.state, str(row.pid or ""), str(row.restarts))
    console.print(table)


def stop(
    process: Annotated[str, typer.Argument(help="A process of the stack, as `gyre status` lists.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """End one process and keep it down: what it held is taken over, or waits, as after a death."""
    control.stop_process(home, process)
    console.print(f"{process} is stopped; `gyre start {process}` starts it again", highlight=False)


def start(
    process: Annotated[str, typer.Argument(help="A process that was stopped alone.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Start a process that `gyre stop` ended."""
    control.start_process(home, process)
    console.print(f"{process} starts", highlight=False)
