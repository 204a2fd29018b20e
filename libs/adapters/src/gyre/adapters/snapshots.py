"""Snapshots of a folded state: one file each, and the check that one belongs to a log.

A file is a header, one line of JSON, and the body. The header names the format, the code that
folded the state, the log (its first event, and the event folded last with its sequence), and the
body's digest. The files are this process's own and hold data, not code.

A snapshot is only a help: whatever is wrong with one (another code, another log, a log that ends
before it, a damaged file), it is refused with its reason and the whole log is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pydantic import TypeAdapter, ValidationError

from gyre.adapters.eventlog.base import EventLog, GapDetected, Recorded, Stream
from gyre.adapters.files import sync_directory, write_then_rename

FORMAT = 1
# The newest may be damaged by what killed its writer's machine; a third would only take space.
NUM_KEPT = 2
_SUFFIX = ".snapshot"


class SnapshotRefused(Exception):
    """The snapshot is not used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """origin: id of the log's first event. sequence, event_id: of the last event folded.
    code: `code_of` what folded it. digest: hex sha256 of the body."""

    format: int
    code: str
    stream: Stream
    origin: str
    sequence: int
    event_id: str
    digest: str


_HEADER = TypeAdapter(SnapshotHeader)


class SnapshotStore:
    """Snapshots of one state of one service, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def newest_first(self) -> list[Path]:
        """By the time of writing: a new log begins at low sequences again."""
        found: list[tuple[int, str]] = []
        for path in self._directory.glob(f"*{_SUFFIX}"):
            # Another scheduler in the same home may remove it meanwhile.
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path.name))
        return [self._directory / name for _, name in sorted(found, reverse=True)]

    def write(self, header: SnapshotHeader, body: bytes) -> Path:
        """Durably; the ones before the last `NUM_KEPT` are removed. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        target = self._directory / f"{header.sequence:020d}{_SUFFIX}"
        write_then_rename(_HEADER.dump_json(header) + b"\n" + body, target)
        for old in self.newest_first()[NUM_KEPT:]:
            old.unlink(missing_ok=True)
        sync_directory(self._directory)
        return target


def read_snapshot(path: Path, *, code: str) -> tuple[SnapshotHeader, bytes]:
    """Header and body. Raises SnapshotRefused for a damaged file, another format or other code."""
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        header = _HEADER.validate_json(first, strict=True)
    except (OSError, ValidationError) as error:
        raise SnapshotRefused(f"not readable: {type(error).__name__}") from error
    if header.format != FORMAT:
        raise SnapshotRefused(f"format {header.format}, this release reads {FORMAT}")
    if header.code != code:
        raise SnapshotRefused("folded by other code than this release's")
    if hashlib.sha256(body).hexdigest() != header.digest:
        raise SnapshotRefused("the body does not have the digest that the header names")
    return header, body


async def check_against_log(header: SnapshotHeader, log: EventLog) -> None:
    """Raises SnapshotRefused unless the snapshot's events lie where they lay when it was made."""
    head = await log.head(header.stream)
    if head < header.sequence:
        raise SnapshotRefused(f"the log ends at {head}, the snapshot at {header.sequence}")
    for sequence, identity in ((1, header.origin), (header.sequence, header.event_id)):
        found = await _event_at(log, header.stream, sequence)
        if found is None:
            raise SnapshotRefused(f"the log has no event at {sequence}")
        if found.event_id != identity:
            raise SnapshotRefused(f"the log has another event at {sequence}")


async def _event_at(log: EventLog, stream: Stream, sequence: int) -> Recorded | None:
    try:
        async with aclosing(log.read(stream, after=sequence - 1, until=sequence)) as events:
            return await anext(events, None)
    except GapDetected:
        return None


def code_of(packages: Iterable[ModuleType]) -> str:
    """Hex sha256 over the sources of `packages`: a state is only as good as the code that folded
    it, and a changed rule of a fold shows in no field."""
    digest = hashlib.sha256()
    for package in packages:
        for root in sorted(package.__path__):
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(f"{package.__name__}/{path.relative_to(root)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
