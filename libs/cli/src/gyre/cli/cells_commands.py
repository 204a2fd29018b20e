"""gyre cells ls, release, plan."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli import cells_plan
from gyre.cli.client import connect
from gyre.cli.options import DEFAULT_HOME, Home

app = typer.Typer(
    help="Look at the cells, take one back from a job, form them from nodes.", no_args_is_help=True
)
app.command("plan")(cells_plan.plan_command)
console = Console()


@app.command("ls")
def list_cells(home: Home = DEFAULT_HOME) -> None:
    """List the cells, the job each is in, and what it does there."""
    table = Table("cell", "job", "role", "executions", "agent")
    with connect(home) as client:
        views = client.cells()
    for view in views:
        table.add_row(
            str(view.cell),
            view.job or "",
            f"{view.role}, leaving" if view.leaving else view.role,
            str(view.num_executions) if view.job else "",
            "" if view.heard else "silent",
        )
    console.print(table)


@app.command()
def release(
    job: str,
    cell: Annotated[int, typer.Argument(min=0, help="The cell's number in the cluster.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Ask a job to give a cell back: it leaves when it trains nothing, and the job goes on."""
    with connect(home) as client:
        view = client.release(job, cell)
    standing = "has left" if view.job != job else f"leaves, it is in {view.role}"
    console.print(f"cell {cell} {standing}", highlight=False)
