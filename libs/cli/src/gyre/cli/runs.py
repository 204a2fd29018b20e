"""A run's log, read and folded."""

from __future__ import annotations

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.cli.errors import CommandError
from gyre.contracts import subjects
from gyre.core.report import RunReport
from gyre.core.scheduling import JobState, evolve


async def read_report(nats: str, job: str) -> RunReport:
    """Fold the job's facts, then its calls. Raises CommandError for a job the log does not know."""
    log = JetStreamEventLog(nats, name="gyre-report")
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
    """The scheduler's state of `job` after stream sequence `until`, and the number of facts folded."""
    log = JetStreamEventLog(nats, name="gyre-replay")
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
