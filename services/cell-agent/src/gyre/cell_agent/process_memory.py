"""Resident memory of processes, and giving back what an allocator keeps."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Of glibc's malloc.h.
_M_ARENA_MAX = -8


def resident_bytes(pid: int | None) -> int | None:
    """Of the process and all that descend from it; None where there is none, or no /proc.

    Pages that several of them share count for each.
    """
    own = None if pid is None else _resident(pid)
    if pid is None or own is None:
        return None
    return own + sum(resident_bytes(child) or 0 for child in _children(pid))


def keep_one_heap() -> None:
    """To be called before the first thread: `give_back` empties one heap only, and glibc would let
    other threads have heaps of their own."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return freed memory to the system, as far as this process's allocator can: what it keeps for
    itself counts as resident. Nothing happens under another C library than glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(fields[1]) * _PAGE_BYTES


def _children(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, listed.read_text(encoding="ascii").split())
        except OSError:
            continue  # the thread ended between the listing and the reading
