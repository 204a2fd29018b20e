"""A workspace frozen as bytes: equal contents give equal bytes, so the digest names the contents.

The artifact is a tar in GNU format: entries sorted by path, mode bits and content kept; times,
owners and set-id bits left out. Sockets, pipes, devices, files that cannot be read and symbolic
links that are absolute or lead out of the workspace are left out and counted: an agent made the
tree, and nothing in it may reach beyond it.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gyre.evaluator.errors import ArtifactTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an artifact may hold: bytes of all its files together, and entries."""

    max_bytes: int
    max_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """data: the tar. num_skipped: entries of the workspace that it leaves out."""

    data: bytes
    num_entries: int
    num_skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: str
    status: os.stat_result


def take_snapshot(workspace: Path, limits: Limits) -> Snapshot:
    """The contents of `workspace` as an artifact; nobody may write to it meanwhile.

    A workspace that is no directory any more was removed by the agent: an empty artifact.
    Raises ArtifactTooLarge.
    """
    entries, num_skipped = [], 0
    total = 0
    for entry in _walk(workspace):
        if entry is None:
            num_skipped += 1
            continue
        entries.append(entry)
        total += entry.status.st_size if stat.S_ISREG(entry.status.st_mode) else 0
        if total > limits.max_bytes:
            raise ArtifactTooLarge(f"workspace: more than {limits.max_bytes} bytes")
        if len(entries) > limits.max_entries:
            raise ArtifactTooLarge(f"workspace: more than {limits.max_entries} entries")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.path)):
            num_skipped += not _add(tar, workspace, entry)
    return Snapshot(data=buffer.getvalue(), num_entries=len(entries), num_skipped=num_skipped)


def extract(data: bytes, target: Path) -> None:
    """Writes an artifact into `target`, an existing empty directory."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        tar.extractall(target, filter="tar")


def _walk(root: Path) -> Iterator[_Entry | None]:
    """Entries below `root`; None for each that an artifact leaves out."""
    if root.is_symlink() or not root.is_dir():
        return
    real_root = root.resolve()
    open_dirs = [root]
    while open_dirs:
        try:
            children = list(open_dirs.pop().iterdir())
        except PermissionError:
            yield None
            continue
        for child in children:
            status = child.lstat()
            mode = status.st_mode
            if stat.S_ISDIR(mode):
                open_dirs.append(child)
            keep = (
                stat.S_ISDIR(mode)
                or stat.S_ISREG(mode)
                or (stat.S_ISLNK(mode) and _stays_inside(child, real_root))
            )
            yield _Entry(path=str(child.relative_to(root)), status=status) if keep else None


def _stays_inside(link: Path, real_root: Path) -> bool:
    target = link.readlink()
    if target.is_absolute():
        return False
    try:
        resolved = (link.parent / target).resolve()
    except (OSError, RuntimeError):
        # A ring of links leads nowhere.
        return False
    return resolved.is_relative_to(real_root)


def _add(tar: tarfile.TarFile, root: Path, entry: _Entry) -> bool:
    """Mutates `tar`. False if the file cannot be read."""
    path, mode = root / entry.path, entry.status.st_mode
    info = tarfile.TarInfo(entry.path)
    info.mode = stat.S_IMODE(mode) & 0o777
    if stat.S_ISDIR(mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif stat.S_ISLNK(mode):
        info.type = tarfile.SYMTYPE
        info.linkname = str(path.readlink())
        tar.addfile(info)
    else:
        info.size = entry.status.st_size
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except PermissionError:
            return False
        with os.fdopen(handle, "rb") as file:
            tar.addfile(info, file)
    return True
