"""A run's log: of a stack, or of an exported file. Opened once, read in one pass, folded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol
from urllib.parse import urlsplit

import typer

from gyre.adapters.archive import ArchiveError, read_archive, read_facts, read_header
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.cli.client import nats_url
from gyre.cli.errors import CommandError
from gyre.contracts import subjects
from gyre.core.report import RunReport
from gyre.embedded.paths import StackPaths

# A user waits at the terminal: the log's own patience, made for services, is far longer.
CONNECT_TIMEOUT_S = 3.0

JobOrNone = Annotated[str | None, typer.Argument(help="The job's id; with --file it may be left.")]
File = Annotated[Path | None, typer.Option("--file", help="An exported run; needs no stack.")]


class Run(Protocol):
    """One job's events. live: more may come. Raises CommandError when they cannot be read."""

    job: str
    live: bool

    def facts(self, until: int | None = None) -> AsyncIterator[Fact]:
        """The facts in order, up to stream sequence `until`."""
        ...

    def calls(self, *, whole: bool = False) -> AsyncIterator[Fact]:
        """The calls in order; none when the file was exported without. What is lost of them is
        passed over with a warning; whole: it is an error instead."""
        ...

    def calls_of(self, execution: str) -> AsyncIterator[Fact]:
        """One execution's calls in order. Raises EventLost at one that is lost."""
        ...


@dataclass(slots=True, kw_only=True)
class LoggedRun:
    """In the log of a stack."""

    job: str
    journal: Journal
    live: bool = True

    def facts(self, until: int | None = None) -> AsyncIterator[Fact]:
        return self.journal.read(Stream.FACTS, (subjects.all_facts(self.job),), until=until)

    def calls(self, *, whole: bool = False) -> AsyncIterator[Fact]:
        lost = None if whole else _passed_over
        return self.journal.read(Stream.CALLS, (subjects.all_calls(self.job),), lost=lost)

    def calls_of(self, execution: str) -> AsyncIterator[Fact]:
        return self.journal.read(Stream.CALLS, (subjects.calls(self.job, execution),))


def _passed_over(error: EventLost) -> None:
    """What else the run holds is told all the same."""
    typer.echo(f"warning: passed over: {error}", err=True)


@dataclass(slots=True, kw_only=True)
class RecordedRun:
    """In a file that `gyre export` wrote."""

    job: str
    path: Path
    live: bool = False

    async def facts(self, until: int | None = None) -> AsyncIterator[Fact]:
        with _blaming(self.path):
            for fact in read_facts(self.path):
                if until is not None and fact.sequence > until:
                    return
                yield fact

    async def calls(self, *, whole: bool = False) -> AsyncIterator[Fact]:
        with _blaming(self.path):
            for stream, fact in read_archive(self.path):
                if stream == "calls":
                    yield fact

    async def calls_of(self, execution: str) -> AsyncIterator[Fact]:
        wanted = subjects.calls(self.job, execution)
        async for fact in self.calls():
            if fact.envelope.aggregate == wanted:
                yield fact


def import_path(home: Path, job: str) -> Path:
    """Where an imported run lies."""
    return StackPaths.of(home).home / "imports" / f"{subjects.checked_id(job)}.jsonl.gz"


@asynccontextmanager
async def open_run(job: str | None, home: Path, file: Path | None = None) -> AsyncIterator[Run]:
    """The run in `file`, else in the stack's log, else among the imported ones.

    Raises CommandError when there is no such run.
    """
    if file is not None:
        yield recorded(file, job)
        return
    if job is None:
        raise CommandError("name a job, or a file with --file")
    imported = _imported(home, job)
    try:
        url = nats_url(home)
    except CommandError:
        if imported is None:
            raise
        yield imported
        return
    log = await _open(url)
    try:
        journal = _journal(log, home)
        if await journal.last_sequence(subjects.sched(job)) > 0:
            yield LoggedRun(job=job, journal=journal)
        elif imported is not None:
            yield imported
        else:
            raise CommandError(f"no job {job!r} in the log; `gyre job ls` lists the jobs")
    finally:
        await log.close()


def recorded(file: Path, job: str | None = None) -> RecordedRun:
    """The run in `file`. Raises CommandError when it is none, or not that of `job`."""
    with _blaming(file):
        header = read_header(file)
    if job is not None and job != header.job:
        raise CommandError(f"{file} holds job {header.job!r}, not {job!r}")
    return RecordedRun(job=header.job, path=file)


async def read_report(nats: str, job: str, home: Path) -> RunReport:
    """Fold the job's facts, then its calls. Raises CommandError for a job the log does not know."""
    log = await _open(nats)
    try:
        return await fold_report(LoggedRun(job=job, journal=_journal(log, home)))
    finally:
        await log.close()


async def fold_report(run: Run) -> RunReport:
    """As `read_report`, of an open run."""
    report = RunReport(run.job)
    async for fact in run.facts():
        report.fold_fact(fact.sequence, fact.envelope)
    if report.state.spec is None and report.deliveries.lost_facts:
        raise CommandError(
            f"job {run.job!r} cannot be told of: {report.deliveries.lost_facts[0].error}"
        )
    if report.state.spec is None:
        raise CommandError(f"no job {run.job!r} in the log; `gyre job ls` lists the jobs")
    async for fact in run.calls():
        report.fold_call(fact.envelope)
    return report


def _imported(home: Path, job: str) -> RecordedRun | None:
    try:
        path = import_path(home, job)
    except subjects.InvalidId as error:
        raise CommandError(f"job {job!r}: {error}") from error
    return recorded(path, job) if path.is_file() else None


def _journal(log: JetStreamEventLog, home: Path) -> Journal:
    return Journal(log, SystemClock(), DirectoryBlobStore(StackPaths.of(home).home / "blobs"))


async def _open(nats: str) -> JetStreamEventLog:
    """Raises CommandError at once when nobody listens there."""
    server = urlsplit(nats)
    where = f"{server.hostname}:{server.port or 4222}"  # without what the URL may hold of secrets
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(server.hostname, server.port or 4222)
        writer.close()
    except (OSError, ValueError) as error:
        raise CommandError(f"no NATS server at {where}: start the stack with `gyre up`") from error
    return JetStreamEventLog(nats, name="gyre-cli")


class _blaming:  # noqa: N801  reads as a clause: with _blaming(path)
    """Says which file an archive's fault is in."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ArchiveError):
            raise CommandError(f"{self._path}: {error}") from error
