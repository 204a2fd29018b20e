"""gyre engines install, ls: the programs that cells serve with, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError

app = typer.Typer(help="Install an engine on this machine, and list them.", no_args_is_help=True)
console = Console()

# Where what was installed on demand is noted, in the directory of this Python's environment.
NOTES = "gyre-env.json"
KEY = "engine_sglang_python"
# Engines are installed from the pins of the checkout that this package is a part of.
SCRIPT = Path(__file__).resolve().parents[5] / "scripts" / "sglang.py"


@app.command()
def install(
    engine: Annotated[Literal["sglang"], typer.Argument(help="Which engine.")],
    python: Annotated[
        Path | None,
        typer.Option(help="Use this environment's interpreter, which has it already."),
    ] = None,
) -> None:
    """Install an engine into an environment of its own, or take one that is there: 3 GB, minutes.

    Again it is quick. Agents that run already have to be started again to see it.
    """
    if not SCRIPT.is_file():
        raise CommandError(f"{SCRIPT} is not there: {engine} is installed from a checkout of Gyre")
    # Where the agents look that run under this Python, whichever checkout the script lies in.
    options = ["--notes", str(Path(sys.prefix) / NOTES)]
    options += [] if python is None else ["--python", str(python)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], check=False)
    if done.returncode != 0:
        raise CommandError(f"{engine} is not installed")


@app.command("ls")
def list_engines() -> None:
    """List the engines, and the Python that each runs under here."""
    table = Table("engine", "python", "")
    table.add_row("local", sys.executable, "with Gyre")
    found = _noted(Path(sys.prefix) / NOTES).get(KEY)
    if found is None:
        table.add_row("sglang", "", "not installed: gyre engines install sglang")
    else:
        here = "installed" if Path(found).exists() else "gone: gyre engines install sglang"
        table.add_row("sglang", found, here)
    console.print(table)


def _noted(path: Path) -> Mapping[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} is not readable: {error}; run make setup") from error
