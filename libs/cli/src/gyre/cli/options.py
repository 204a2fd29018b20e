"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path,
    typer.Option("--home", envvar="GYRE_HOME", help="State directory of the stack."),
]
DEFAULT_HOME = Path(".gyre")
