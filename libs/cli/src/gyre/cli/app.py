"""The `gyre` command."""

from __future__ import annotations

import sys

import typer

from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.logging import configure_logging
from gyre.cli import (
    archive_commands,
    bench_commands,
    cells_commands,
    demo_command,
    engines_commands,
    explain_commands,
    export_model_command,
    forks_command,
    job_commands,
    plan_command,
    run_commands,
    simulate_commands,
    stack_commands,
    tree_command,
    whatif_command,
)
from gyre.cli.errors import CommandError
from gyre.embedded.errors import EmbeddedError

app = typer.Typer(
    help="Reinforcement learning for agents that work for hours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
stack_commands.register(app)
app.add_typer(job_commands.app, name="job")
app.add_typer(cells_commands.app, name="cells")
app.add_typer(engines_commands.app, name="engines")
run_commands.register(app)
explain_commands.register(app)
forks_command.register(app)
tree_command.register(app)
archive_commands.register(app)
export_model_command.register(app)
bench_commands.register(app)
simulate_commands.register(app)
whatif_command.register(app)
plan_command.register(app)
demo_command.register(app)


def main() -> None:
    """Exit status 0, 1 for a job that did not succeed, 2 for what could not be done."""
    configure_logging("gyre", "ERROR")
    try:
        app()
    except (CommandError, EmbeddedError, EventLogError) as error:
        sys.stderr.write(f"gyre: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
