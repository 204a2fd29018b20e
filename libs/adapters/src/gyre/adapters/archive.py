"""A run as one file: its facts and calls, so that somebody else can replay it.

Format 1, gzip, JSON lines:

    {"gyre_run":1,"job":J,"release":R,"num_facts":F,"num_calls":C,"digest":D}
    {"stream":"facts","sequence":N,"event":{...}}     the job's facts, in order
    {"stream":"calls","sequence":N,"event":{...}}     its calls, in order; none if left out

`event` is the whole envelope: a body that the log has in the blob store is here in its place, so a
file needs nothing beside it. `sequence` is its place in the log's stream, rising. The digest is
SHA-256 over the other header fields and the SHA-256 of all lines below the header, so a changed,
cut or extended file is refused. Writing and reading hold one event at a time in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import AsyncIterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gyre.adapters.journal import MAX_BODY_BYTES, Fact
from gyre.contracts.codec import UndecodableEvent, decode, encode
from gyre.contracts.envelope import Envelope
from gyre.contracts.subjects import InvalidId, checked_id

FORMAT = 1
# An event, its head, and what its line adds. A longer line is none: a file made to fill the memory.
_MAX_LINE_BYTES = MAX_BODY_BYTES + 4096
_LINE = re.compile(rb'\{"stream":"(facts|calls)","sequence":(\d{1,18}),"event":(\{.*\})\}\n')
# What `keys.make_key` makes: a harness may have printed its own.
_KEY = re.compile(rb"gyre_[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.\d+\.[0-9a-f]{64}")
_HIDDEN = b"[hidden]"

StreamName = Literal["facts", "calls"]


class ArchiveError(Exception):
    """The file is not the record of a run, or not the one that was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First line of an archive. release: of Gyre, that wrote it."""

    job: str
    release: str
    num_facts: int
    num_calls: int
    digest: str

    def line(self) -> bytes:
        fields = {"job": self.job, "release": self.release, "num_facts": self.num_facts}
        fields |= {"num_calls": self.num_calls, "digest": self.digest}
        return json.dumps({"gyre_run": FORMAT} | fields).encode() + b"\n"

    def digest_with(self, body: str) -> str:
        """What the digest must be above a body whose SHA-256 is `body`."""
        fields = [FORMAT, self.job, self.release, self.num_facts, self.num_calls, body]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(slots=True)
class Hider:
    """Takes secrets, and whatever else the user names, out of encoded events. num: how often it had
    to."""

    texts: Sequence[str] = ()
    num: int = 0
    _wanted: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        # As they stand inside a JSON string.
        encoded = (json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in self.texts)
        self._wanted = tuple(sorted((text for text in encoded if text), key=len, reverse=True))

    def hide(self, data: bytes) -> bytes:
        """`data` without them; it may be no event any more when such a text is part of its form."""
        clean, found = data, 0
        if b"gyre_" in clean:
            clean, found = _KEY.subn(_HIDDEN, clean)
        for text in self._wanted:
            found += clean.count(text)
            clean = clean.replace(text, _HIDDEN)
        self.num += found
        return clean


async def write_archive(
    path: Path,
    *,
    job: str,
    release: str,
    facts: AsyncIterable[Fact],
    calls: AsyncIterable[Fact],
    hider: Hider,
) -> Header:
    """Write the run to `path`, whole or not at all."""
    body = path.with_name(f"{path.name}.body")
    whole = path.with_name(f"{path.name}.partial")
    digest, counts = hashlib.sha256(), {"facts": 0, "calls": 0}
    try:
        with _compressed(body, "wb") as file:
            for stream, events in (("facts", facts), ("calls", calls)):
                async for fact in events:
                    line = _line(stream, fact, hider)
                    file.write(line)
                    digest.update(line)
                    counts[stream] += 1
        header = _signed(job, release, counts["facts"], counts["calls"], digest.hexdigest())
        # A gzip file may be several in a row: the header, known only now, goes before the body.
        with _compressed(whole, "wb") as file:
            file.write(header.line())
        with whole.open("ab") as file, body.open("rb") as rest:
            shutil.copyfileobj(rest, file)
            file.flush()
            os.fsync(file.fileno())
        whole.replace(path)
    finally:
        body.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)
    return header


def _line(stream: str, fact: Fact, hider: Hider) -> bytes:
    data = encode(fact.envelope)
    clean = hider.hide(data)
    if clean != data and not _still(fact.envelope, clean):
        raise ArchiveError(f"event {fact.sequence}: a text to hide is part of its form or ids")
    return f'{{"stream":"{stream}","sequence":{fact.sequence},"event":'.encode() + clean + b"}\n"


def _still(envelope: Envelope, data: bytes) -> bool:
    """`data` is the same event, whatever its body says by now."""
    try:
        return replace(decode(data), body=envelope.body) == envelope
    except UndecodableEvent:
        return False


def _signed(job: str, release: str, num_facts: int, num_calls: int, body: str) -> Header:
    unsigned = Header(job=job, release=release, num_facts=num_facts, num_calls=num_calls, digest="")
    return Header(
        job=job,
        release=release,
        num_facts=num_facts,
        num_calls=num_calls,
        digest=unsigned.digest_with(body),
    )


def read_header(path: Path) -> Header:
    """The archive's header. Raises ArchiveError for a file that has none this release reads."""
    with _archive(path) as file:
        return _header(file)


def read_archive(path: Path) -> Iterator[tuple[StreamName, Fact]]:
    """Every event of the run: facts in order, then calls in order.

    Raises ArchiveError at the first line that is no event of this job, and at the end when the
    counts or the digest are not the header's.
    """
    with _archive(path) as file:
        header = _header(file)
        digest, counts = hashlib.sha256(), {"facts": 0, "calls": 0}
        last = {"facts": 0, "calls": 0}
        while line := file.readline(_MAX_LINE_BYTES):
            digest.update(line)
            stream, fact = _event(line, header)
            if fact.sequence <= last[stream] or (stream == "facts" and counts["calls"]):
                raise ArchiveError(f"event {fact.sequence} of {stream} is out of order")
            last[stream] = fact.sequence
            counts[stream] += 1
            yield stream, fact
    if (counts["facts"], counts["calls"]) != (header.num_facts, header.num_calls):
        raise ArchiveError(
            f"{counts['facts']} facts and {counts['calls']} calls, but its header says "
            f"{header.num_facts} and {header.num_calls}: the file is not whole"
        )
    if header.digest_with(digest.hexdigest()) != header.digest:
        raise ArchiveError("the digest is not the header's: the file was changed")


def read_facts(path: Path) -> Iterator[Fact]:
    """The run's facts in order; the calls behind them are not read, nor the digest checked."""
    for stream, fact in read_archive(path):
        if stream != "facts":
            return
        yield fact


def _event(line: bytes, header: Header) -> tuple[StreamName, Fact]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ArchiveError(f"no line of a run: {line[:60]!r}")
    try:
        fact = Fact(sequence=int(match[2]), envelope=decode(match[3]))
    except UndecodableEvent as error:
        raise ArchiveError(f"event {int(match[2])}: {' '.join(str(error).split())}") from error
    if fact.job != header.job:
        raise ArchiveError(f"event {fact.sequence} is of job {fact.job!r}, not {header.job!r}")
    return ("facts" if match[1] == b"facts" else "calls"), fact


def _header(file: gzip.GzipFile) -> Header:
    line = file.readline(_MAX_LINE_BYTES)
    try:
        raw = json.loads(line)
        if not isinstance(raw, dict) or type(raw.get("gyre_run")) is not int:
            raise ArchiveError("no record of a run")  # another JSON file, for instance
        if raw.pop("gyre_run") != FORMAT:
            raise ArchiveError(f"written in another format: this release reads {FORMAT}")
        header = Header(**raw)
        checked_id(header.job)
    except (ValueError, TypeError, InvalidId) as error:
        raise ArchiveError("no record of a run: its first line is no header") from error
    return header


@contextmanager
def _archive(path: Path) -> Iterator[gzip.GzipFile]:
    try:
        with gzip.open(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ArchiveError(f"cannot be read: {reason}") from error


@contextmanager
def _compressed(path: Path, mode: Literal["wb"]) -> Iterator[gzip.GzipFile]:
    """A gzip file without a name or a time in it: equal runs are equal files."""
    with path.open(mode) as raw, gzip.GzipFile("", mode, 6, raw, mtime=0) as file:
        yield file
