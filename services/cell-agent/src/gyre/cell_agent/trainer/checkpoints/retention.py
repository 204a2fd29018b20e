"""Which checkpoints of a job stay on disk, and whether another one fits beside them.

Only what no log entry can send anybody to is removed: not the newest ones, not the one that a
restart finds, not those that are published or served (`protected`). A checkpoint is renamed before
its files go, so a crash in between leaves none that is half there under its name; what it leaves is
removed with the next.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NAMED = re.compile(r"l(\d+)-v(\d+)")
_HIDDEN = re.compile(r"\.l\d+-v\d+\.")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """keep: newest checkpoints that stay, at least 1. protected: those that stay besides."""

    keep: int
    protected: tuple[Path, ...] = ()


def checkpoint_name(lineage: int, version: int) -> str:
    """Of its directory. A lineage is never rewound, so a name is given once."""
    return f"l{lineage}-v{version:05d}"


def draft_of(directory: Path) -> Path:
    """Where this process writes what becomes `directory`."""
    return directory.with_name(f".{directory.name}.{os.getpid()}")


def prune(parent: Path, retention: Retention, *, coming: int = 0) -> int:
    """Removes what need not stay in `parent`, where one process writes at a time, and what crashes
    left there. coming: checkpoints about to be written, for which room is kept among the newest.
    Returns how many entries were removed; what cannot be removed stays until the next time."""
    left = [entry for entry in parent.iterdir() if _HIDDEN.match(entry.name)]
    protected = {path.resolve() for path in retention.protected}
    stay = max(0, retention.keep - coming)
    newest_first = sorted(_checkpoints(parent), reverse=True)
    old = [path for _, path in newest_first[stay:] if path.resolve() not in protected]
    return sum(map(_removed, (*left, *old)))


def lacks_room(parent: Path, num_bytes: int) -> bool:
    """Whether so many bytes cannot be had there now: asked of the file system by reserving them,
    since torch's writers say of a full disk only that a file came out too short."""
    probe = parent / f".room.{os.getpid()}"
    handle = os.open(probe, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(handle, 0, max(1, num_bytes))
    except OSError as error:
        return error.errno in NO_ROOM
    finally:
        os.close(handle)
        probe.unlink()
    return False


def _checkpoints(parent: Path) -> Collection[tuple[tuple[int, int], Path]]:
    """((lineage, version), directory) of each."""
    found = []
    for entry in parent.iterdir():
        named = _NAMED.fullmatch(entry.name)
        if named is not None:
            found.append(((int(named[1]), int(named[2])), entry))
    return found


def _removed(directory: Path) -> bool:
    gone = directory
    with suppress(OSError):
        if not directory.name.startswith("."):
            gone = directory.with_name(f".{directory.name}.gone")
            directory.rename(gone)
        shutil.rmtree(gone)
        return True
    return False
