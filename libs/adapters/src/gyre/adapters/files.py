"""Files that are whole or not there, whatever dies in between, also over a power loss."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_then_rename(data: bytes, target: Path) -> None:
    """Written to a temporary file beside `target`, synced, renamed, and the directory synced."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".writing-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        temporary.rename(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """What was made, renamed or removed in `directory` outlives a power loss."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
