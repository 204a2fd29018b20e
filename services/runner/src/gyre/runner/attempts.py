"""One attempt of an execution, from its directory to the moment its process tree is gone.

The same code starts an attempt and takes one up again after a restart: the sandbox is asked first
what became of the launch, and the time-out counts from `attempt_started` in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from gyre.adapters.clock import Clock
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import Journal
from gyre.adapters.keys import KeyIdentity, make_key
from gyre.adapters.logging import get_logger
from gyre.core.execution import AttemptEnd, Execution, Exit, remaining_s
from gyre.runner.delivery import has_undelivered_call, own_proxy_answers, settle
from gyre.runner.errors import RunnerError
from gyre.runner.harnesses import Harnesses
from gyre.runner.registry import Registry
from gyre.runner.sandbox import Process, Sandbox
from gyre.runner.settings import RunnerSettings
from gyre.runner.workspace import AttemptDir, make


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Runs attempts. Holds nothing of any of them."""

    journal: Journal
    clock: Clock
    sandbox: Sandbox
    harnesses: Harnesses
    registry: Registry
    settings: RunnerSettings

    def directory(self, job: str, execution: str, attempt: int) -> AttemptDir:
        """Where the attempt's files lie."""
        return AttemptDir.of(
            self.settings.workspaces_dir, job=job, execution=execution, attempt=attempt
        )

    def key(self, job: str, execution: str, attempt: int) -> str:
        """The attempt's key for the proxy, the same in every life of the runner."""
        identity = KeyIdentity(job=job, execution=execution, attempt=attempt)
        return make_key(self.settings.key_secret.get_secret_value(), identity)

    async def chosen_proxy(self, execution: str) -> str | None:
        """Which of several proxies the execution belongs to; None where there is one, or none yet
        by the name that the settings give."""
        proxies = self.settings.proxies
        return next(iter(await proxies.of(execution)), None) if proxies.have_doors else None

    async def run(self, job: str, state: Execution, cancelled: asyncio.Event) -> AttemptEnd:
        """Runs or takes up the attempt of `state`; how it ended, its process tree being gone.

        Cancelling this coroutine ends the harness and leaves a note for the next runner.
        """
        directory = self.directory(job, state.execution, state.attempt)
        try:
            process = await self.sandbox.find(directory.status)
            if directory.interrupted.exists():
                if process is not None:
                    await self.sandbox.kill(process, 0.0)
                return AttemptEnd(broken="the runner was stopped during the attempt")
            if process is None and cancelled.is_set():
                return AttemptEnd(cancelled=True)
            if process is None:
                process = await self._launch(job, state, directory)
            end = await self._supervise(job, state, process, directory, cancelled)
        except RunnerError as error:
            return AttemptEnd(broken=str(error), cancelled=cancelled.is_set())
        return await self._judge(job, state, end)

    async def _launch(self, job: str, state: Execution, directory: AttemptDir) -> Process:
        task = self.registry.task_dir(job, state)
        spec = self.registry.jobs[job]
        prompt = await asyncio.to_thread(make, directory, task)
        key = self.key(job, state.execution, state.attempt)
        proxies = self.settings.proxies
        with proxies.door(state.execution, directory.proxy) as door:
            url = proxies.urls[0] if door is None else door.url
            command = self.harnesses.command(spec, directory, prompt=prompt, key=key, proxy_url=url)
            launching = asyncio.ensure_future(self.sandbox.launch(replace(command, door=door)))
            try:
                process = await asyncio.shield(launching)
            except asyncio.CancelledError:
                await self._take_along(await launching, directory)
                raise
        failpoint("runner.after_launch")
        get_logger().info("harness_launched", pid=process.pid, attempt=state.attempt)
        return process

    async def _supervise(
        self,
        job: str,
        state: Execution,
        process: Process,
        directory: AttemptDir,
        cancelled: asyncio.Event,
    ) -> AttemptEnd:
        """Waits for the exit, the time-out or a cancellation, then ends whatever is left."""
        spec = self.registry.jobs[job]
        left_s = remaining_s(state, timeout_s=spec.harness.timeout_s, now=self.clock.now())
        try:
            ended = await _unless(cancelled, lambda: self.sandbox.wait(process, left_s))
            grace_s = 0.0 if ended is not None else self.settings.runner_grace_s
            killed = await self.sandbox.kill(process, grace_s)
        except asyncio.CancelledError:
            await self._take_along(process, directory)
            raise
        if ended is not None:
            return AttemptEnd(exit=ended)
        return AttemptEnd(
            exit=killed, timed_out=not cancelled.is_set(), cancelled=cancelled.is_set()
        )

    async def _take_along(self, process: Process, directory: AttemptDir) -> None:
        """The runner stops: so does the harness, and the next runner is told why."""
        directory.interrupted.touch()
        await self.sandbox.kill(process, self.settings.runner_stop_grace_s)

    async def _judge(self, job: str, state: Execution, end: AttemptEnd) -> AttemptEnd:
        """Adds what the harness says of itself, and to a failure what the surroundings had to do
        with it."""
        if end.exit is None or end.timed_out or end.cancelled:
            return end
        directory = self.directory(job, state.execution, state.attempt)
        reported = self.harnesses.reported_error(self.registry.jobs[job], directory)
        if reported is not None:
            get_logger().info("harness_reported_error", error=reported, attempt=state.attempt)
        end = replace(end, reported_error=reported)
        if end.succeeded:
            return end
        key = self.key(job, state.execution, state.attempt)
        proxies = await self.settings.proxies.of(state.execution)
        await asyncio.gather(*(settle(proxy, key) for proxy in proxies))
        undelivered = await has_undelivered_call(
            self.journal, job=job, execution=state.execution, attempt=state.attempt
        )
        if not undelivered and not await own_proxy_answers(directory.reached_proxy(), proxies):
            return AttemptEnd(exit=end.exit, broken="the harness failed while the proxy was down")
        return replace(end, undelivered=undelivered)


async def _unless(
    event: asyncio.Event, work: Callable[[], Coroutine[Any, Any, Exit | None]]
) -> Exit | None:
    """The result of `work`, None if the event comes first."""
    working = asyncio.ensure_future(work())
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
