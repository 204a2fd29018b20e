"""Named places where a test kills the process, to prove that its restart loses nothing.

`GYRE_FAILPOINT=name` dies at the first hit of that name, `name:3` at the third; several are
separated by commas. A marker file under `<GYRE_HOME>/run` makes each die once per stack: the
restarted process finds the marker and lives.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import cache
from pathlib import Path

_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kills this process with SIGKILL if the environment asks for it here; else does nothing.

    Raises ValueError when GYRE_FAILPOINT cannot be read as names with counts.
    """
    targets = _targets()
    if name not in targets:
        return
    _hits[name] += 1
    if _hits[name] >= targets[name] and _first_death(name):
        os.kill(os.getpid(), signal.SIGKILL)


@cache
def _targets() -> dict[str, int]:
    """The hit to die at, by name, as the process was started with: some places are passed with
    every token, and a look at the environment takes longer than what is done there."""
    wanted = os.environ.get("GYRE_FAILPOINT", "")
    targets: dict[str, int] = {}
    for item in filter(None, wanted.split(",")):
        name, _, count = item.partition(":")
        if count and not (count.isdecimal() and int(count) >= 1):
            raise ValueError(f"GYRE_FAILPOINT={item!r}: after the colon comes a count from 1")
        targets[name] = int(count or 1)
    return targets


def _first_death(name: str) -> bool:
    run = Path(os.environ.get("GYRE_HOME", ".gyre")) / "run"
    run.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(run / f"failpoint.{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
