"""Which agents are alive: they say so on core NATS, and what is not heard for long is a fact.

Invariants:
- Silence is counted from the moment this process listens (again): a scheduler that was down, cut
  off from NATS or held up itself blames nobody for it.
- A silence is said once, on the job's own subject, as `agent_silent`; what follows from it is the
  decider's. Heartbeats themselves are no facts: nothing but their absence ever matters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.wire import Unavailable, Wire
from gyre.contracts import subjects
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import JobState

# How often this process sends itself a message over the connection on which it hears the agents.
TICK_S = 1.0
# One that has not come back by then shows that nobody could be heard: the connection is dead, or
# this process did not run.
DEAF_S = 3.0
# Another connection is tried then; a busy server answers within less.
DEAD_S = 10.0
# Five heartbeats: a free cell that falls silent for so long is given no job; one that was never
# heard is given the time that an agent takes to start again after an outage.
ABSENT_S = 10.0
UNHEARD_S = 60.0
RECONNECT_S = 0.5


class Heartbeats:
    """Who was heard when, on the loop's clock. `run` listens; the rest only looks.

    since: when it began to listen, or could hear again; None while it cannot. echoed: when its own
    message last came back."""

    def __init__(self, url: str) -> None:
        self._link = Link(url, name="scheduler-heartbeats")
        self._heard: dict[int, float] = {}
        self._since: float | None = None
        self._echoed = self._looked = 0.0

    async def run(self) -> None:
        """Listen until cancelled; listen again whenever the connection is lost."""
        try:
            while True:
                with contextlib.suppress(Unavailable):
                    await self._listen(await self._link.wire())
                self._since = None
                self._link.drop()
                await asyncio.sleep(RECONNECT_S)
        finally:
            await self._link.close()

    async def _listen(self, wire: Wire) -> None:
        """Returns when the connection is lost or dead."""
        clock = asyncio.get_running_loop()
        echo = f"{wire.inbox}.echo"
        wire.subscribe(subjects.EVERY_HEARTBEAT, self._on_heartbeat)
        wire.subscribe(echo, self._on_echo)
        self._since = self._echoed = clock.time()
        while wire.lost is None:
            wire.publish(echo, b"")
            await asyncio.sleep(TICK_S)
            deaf = clock.time() - self._echoed
            if deaf > DEAF_S:
                self._since = clock.time()
            if deaf > DEAD_S:
                return

    def _on_heartbeat(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        number = subject.rpartition(b".")[2]
        if number.isdigit():
            self._heard[int(number)] = asyncio.get_running_loop().time()

    def _on_echo(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        self._echoed = asyncio.get_running_loop().time()

    def silent_for(self, cell: int) -> float:
        """Seconds; 0 while nobody could be heard."""
        now = asyncio.get_running_loop().time()
        if self._since is None or now - self._echoed > DEAF_S:
            return 0.0
        return now - max(self._since, self._heard.get(cell, 0.0))

    def absent(self, cells: Iterable[int]) -> frozenset[int]:
        """Those of `cells` whose agents are not there now."""
        return frozenset(
            cell
            for cell in cells
            if self.silent_for(cell) > (ABSENT_S if cell in self._heard else UNHEARD_S)
        )

    def silences(
        self, jobs: Iterable[JobState], now: float
    ) -> Iterator[tuple[JobState, sched.AgentSilent]]:
        """Cells of running jobs whose silence is longer than their job allows and not said yet; one
        a job, and none before a tick has passed since the last look."""
        clock = asyncio.get_running_loop().time()
        if clock - self._looked < TICK_S:
            return
        self._looked = clock
        for job in jobs:
            if job.status != "running":
                continue
            limit = job.required_spec.schedule.silence_deadline_s
            for cell in job.everyone:
                silence = self.silent_for(cell.cell)
                if silence > limit and not cell.silent:
                    body = sched.AgentSilent(cell=cell.cell, last_heard=now - silence)
                    yield job, body
                    break
