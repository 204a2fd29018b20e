"""An execution from `started` to `terminated`: the loop that drives the state machine of
`gyre.core.execution`, one event at a time, each appended before it is believed."""

from __future__ import annotations

import asyncio

from gyre.adapters.clock import Clock
from gyre.adapters.journal import Journal
from gyre.adapters.keys import key_id
from gyre.adapters.logging import bind, get_logger
from gyre.contracts import subjects
from gyre.contracts.events.executions import (
    AttemptFailed,
    AttemptStarted,
    Started,
    Terminated,
)
from gyre.core.execution import Execution, Phase, conclude, evolve, terminated
from gyre.runner.attempts import Attempts
from gyre.runner.registry import Registry

RunEvent = Started | AttemptStarted | AttemptFailed | Terminated


class ExecutionLoop:
    """Runs executions. The only writer of their `run` subjects."""

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        registry: Registry,
        attempts: Attempts,
        retry_pause_s: float,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._registry = registry
        self._attempts = attempts
        self._retry_pause_s = retry_pause_s

    async def start(
        self, job: str, *, execution: str, group: str, task: str, incarnation: str
    ) -> Execution:
        """Appends `started`, which takes the order over.

        The incarnation is part of the cause: what an earlier life of the runner appended is a
        SequenceConflict, not a repeat.
        """
        body = Started(execution=execution, group=group, task=task)
        state = Execution(execution=execution)
        return await self._append(job, state, body, cause=("started", incarnation, execution))

    async def run(self, job: str, state: Execution) -> None:
        """Takes the execution from where it stands to its end."""
        with bind(job=job, execution=state.execution):
            cancelled = self._registry.cancellation((job, state.execution))
            while state.phase is not Phase.TERMINATED:
                for event in await self._next(job, state, cancelled):
                    state = await self._append(
                        job, state, event, cause=(event.TYPE, state.execution, event.attempt)
                    )
            self._registry.forget((job, state.execution))

    async def _next(
        self, job: str, state: Execution, cancelled: asyncio.Event
    ) -> tuple[AttemptStarted | AttemptFailed | Terminated, ...]:
        num_attempts = self._registry.jobs[job].harness.num_attempts
        key = (job, state.execution)
        if state.phase is Phase.RUNNING:
            end = await self._attempts.run(job, state, cancelled)
            return conclude(
                state,
                end,
                num_attempts=num_attempts,
                now=self._clock.now(),
                cancelled_as=self._registry.ended_as(key),
            )
        if state.phase is Phase.BETWEEN and state.attempt < num_attempts:
            await _pause(cancelled, self._retry_pause_s)
        now = self._clock.now()
        if cancelled.is_set():
            return (terminated(state, self._registry.ended_as(key), ending=None, now=now),)
        if state.attempt >= num_attempts:
            return (terminated(state, "infrastructure", ending=None, now=now),)
        return (await self._attempt(job, state.execution, state.attempt + 1),)

    async def _attempt(self, job: str, execution: str, attempt: int) -> AttemptStarted:
        return AttemptStarted(
            execution=execution,
            attempt=attempt,
            key_id=key_id(self._attempts.key(job, execution, attempt)),
            workspace=self._attempts.directory(job, execution, attempt).name,
            proxy=await self._attempts.chosen_proxy(execution),
        )

    async def _append(
        self, job: str, state: Execution, body: RunEvent, *, cause: tuple[str | int, ...]
    ) -> Execution:
        now = self._clock.now()
        sequence = await self._journal.append(
            subjects.run(job, state.execution),
            body,
            job=job,
            cause=cause,
            expected=state.sequence,
        )
        fields = body.model_dump(exclude={"execution"})
        get_logger().info(body.TYPE, **fields)
        return evolve(state, body, time=now, sequence=sequence)


async def _pause(cancelled: asyncio.Event, seconds: float) -> None:
    """Sleeps, but not through a cancellation."""
    try:
        async with asyncio.timeout(seconds):
            await cancelled.wait()
    except TimeoutError:
        return
