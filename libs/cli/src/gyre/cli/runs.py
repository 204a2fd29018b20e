"""A run's log, read and folded."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.cli.errors import CommandError
from gyre.contracts import subjects
from gyre.core.report import RunReport
from gyre.core.scheduling import JobState, evolve

# A user waits at the terminal: the log's own patience, made for services, is far longer.
CONNECT_TIMEOUT_S = 3.0


async def _open(nats: str, name: str) -> JetStreamEventLog:
    """Raises CommandError at once when nobody listens there."""
    server = urlsplit(nats)
    where = f"{server.hostname}:{server.port or 4222}"  # without what the URL may hold of secrets
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(server.hostname, server.port or 4222)
        writer.close()
    except (OSError, ValueError) as error:
        raise CommandError(f"no NATS server at {where}: start the stack with `gyre up`") from error
    return JetStreamEventLog(nats, name=name)


async def read_report(nats: str, job: str) -> RunReport:
    """Fold the job's facts, then its calls. Raises CommandError for a job the log does not know."""
    log = await _open(nats, "gyre-report")
    journal = Journal(log, SystemClock())
    report = RunReport(job)
    try:
        async for fact in journal.read(Stream.FACTS, (subjects.all_facts(job),)):
            report.fold_fact(fact.sequence, fact.envelope)
        if report.state.spec is None:
            raise CommandError(f"no job {job!r} in the log; `gyre job ls` lists the jobs")
        async for fact in journal.read(Stream.CALLS, (subjects.all_calls(job),)):
            report.fold_call(fact.envelope)
    finally:
        await log.close()
    return report


async def read_state(nats: str, job: str, until: int | None) -> tuple[JobState, int]:
    """The scheduler's state of `job` after stream sequence `until`, and how many facts made it."""
    log = await _open(nats, "gyre-replay")
    state, num = JobState(job=job), 0
    try:
        journal = Journal(log, SystemClock())
        async for fact in journal.read(Stream.FACTS, (subjects.all_facts(job),), until=until):
            evolve(state, fact.sequence, fact.body)
            num += 1
    finally:
        await log.close()
    if num == 0:
        raise CommandError(f"no job {job!r} in the log; `gyre job ls` lists the jobs")
    return state, num
