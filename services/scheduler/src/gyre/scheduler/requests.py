"""What a user may ask of a job, as facts: cancel, pause, resume, drain. Each may be asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gyre.adapters.eventlog.base import SequenceConflict
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import requests as request_events
from gyre.core.scheduling.state import JobState
from gyre.scheduler.loop import SchedulerLoop

# How long a submission or a request may take to show in the state that its answer tells.
FOLD_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """body: the fact that asks, at a time in unix seconds. stands: nothing is left to ask for.
    wants_running: it makes no sense for a job that does not run."""

    name: str
    body: Callable[[float], Body]
    stands: Callable[[JobState], bool]
    wants_running: bool = True


CANCEL = JobRequest(
    name="cancel",
    body=lambda now: request_events.CancelRequested(reason="cancelled by the user"),
    stands=lambda job: job.finished or job.cancel_requested is not None,
    wants_running=False,
)
PAUSE = JobRequest(
    name="pause",
    body=lambda now: request_events.PauseRequested(reason="paused by the user"),
    stands=lambda job: job.finished or job.paused,
)
RESUME = JobRequest(
    name="resume",
    body=lambda now: request_events.ResumeRequested(now=now),
    stands=lambda job: job.finished or not job.paused,
)
DRAIN = JobRequest(
    name="drain",
    body=lambda now: request_events.DrainRequested(reason="drained by the user"),
    stands=lambda job: job.finished or job.drain_requested is not None,
)


async def append_request(
    loop: SchedulerLoop, journal: Journal, job: str, request: JobRequest
) -> None:
    """Append the request's fact unless it stands, and again after a conflict with a decision.

    Looks only at a state that has folded all of the subject that the append expects, so a request
    that was asked twice at once is in the log once. Raises TimeoutError.
    """
    subject = subjects.sched(job)
    async with asyncio.timeout(FOLD_DEADLINE_S):
        while True:
            expected = await journal.last_sequence(subject)
            await folded(loop, expected)
            if request.stands(loop.state.jobs[job]):
                return
            try:
                await journal.append(
                    subject,
                    request.body(loop.now()),
                    job=job,
                    cause=(request.name, job, expected),
                    causation="api",
                    expected=expected,
                )
            except SequenceConflict:
                continue


async def folded(loop: SchedulerLoop, sequence: int) -> None:
    """Returns once the loop's state holds the fact at `sequence`. Raises TimeoutError."""
    async with asyncio.timeout(FOLD_DEADLINE_S), loop.folded:
        await loop.folded.wait_for(lambda: loop.state.sequence >= sequence)
