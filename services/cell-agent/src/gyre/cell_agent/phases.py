"""The phases of a role change: each timed, with a deadline, with what undoes it.

    async with phases("release_engine", undo=take_memory_again):
        await engine.release_memory(...)

- A phase that is refused, or not done by its deadline, raises PhaseFailed; whoever drives the
  change then calls `undo`, which takes back that phase and those before it, last first.
- Any other error is a process that is gone or cannot be trusted: it is killed, and there is
  nothing to undo on it. So is an engine that has not answered by the deadline of a phase that
  changes its memory or weights: whether it did what was asked nobody knows.
- Each phase leaves a record: its seconds, and the memory of both sides at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from gyre.adapters.logging import get_logger
from gyre.cell_agent.cell_memory import CellMemory
from gyre.cell_agent.deadlines import STATE_BYTES, Deadlines
from gyre.cell_agent.engine.errors import EngineError, EngineRefusedError, EngineTimeoutError
from gyre.cell_agent.trainer.process.client import TrainerCallError, TrainerTimeout
from gyre.contracts.events.cells import RolePhase

Undo = Callable[[], Awaitable[None]]
MemoryReader = Callable[[], Awaitable[CellMemory]]

DEADLINES_S: Mapping[str, float] = MappingProxyType(
    {
        # Aborts take a decode step or two; a long prefill is not interrupted.
        "stop_admitting": 60.0,
        # Both bounded by their own patience, ANNOUNCE_S and PIN_S of engine_turn.py; this is
        # for an engine that stopped answering.
        "reroute": 10.0,
        "drain": 20.0,
        "release_engine": 30.0,
        # Memory moved between the device and where it is kept, or a file read.
        "restore_trainer": 60.0,
        "offload_trainer": 60.0,
        "resume_engine": 60.0,
        # Weights pulled from the core: longer than the trainer itself waits (`Deadlines.pull_s`).
        "pull_weights": 300.0,
        # Weights read from a disk, or received from the core's agent.
        "receive_weights": 600.0,
        "register": 60.0,
        "warm": 60.0,
        "open_routes": 30.0,
    }
)
"""Seconds by phase, of a small model; the job's transition_deadline_s ends those of a role change
earlier, not those of a batch that is joined, for which nobody waits."""

# How many times the weights' bytes a phase moves, for which it has more time. Weights that are
# received come over the network, go into the engine, and are read there for their checksum.
_MOVES: Mapping[str, int] = MappingProxyType(
    {
        "release_engine": 1,
        "restore_trainer": STATE_BYTES,
        "offload_trainer": STATE_BYTES,
        "resume_engine": 1,
        "pull_weights": 1,
        "receive_weights": 3,
    }
)

# Phases whose work the undoing of this one does again, at most.
_DONE_AGAIN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "stop_admitting": ("resume_engine", "receive_weights", "warm"),
        "restore_trainer": ("offload_trainer",),
        "offload_trainer": ("restore_trainer",),
        "resume_engine": ("stop_admitting", "release_engine"),
    }
)

# Whoever does not take an undoing within this and the time of what it does again is given up.
UNDO_S = 60.0

# Phases in which the trainer is asked, and not the engine.
_TRAINERS = frozenset({"restore_trainer", "pull_weights", "register", "offload_trainer"})

# Phases that an engine may have done although it never said so.
_CHANGES_ENGINE = frozenset({"release_engine", "resume_engine", "receive_weights", "warm"})


def deadline_s(phase: str, deadlines: Deadlines) -> float:
    """Its own, whatever the job says."""
    return DEADLINES_S[phase] + deadlines.moving_s(_MOVES.get(phase, 0))


def undo_deadline_s(phase: str, deadlines: Deadlines) -> float:
    """For the undoing of this phase."""
    return UNDO_S + sum(deadline_s(again, deadlines) for again in _DONE_AGAIN.get(phase, ()))


def now() -> float:
    """Seconds of the loop's clock, by which phases are measured and their deadlines kept."""
    return asyncio.get_running_loop().time()


class PhaseFailed(Exception):
    """The phase was refused or not done in time. cause: by whom."""

    def __init__(self, phase: str, cause: EngineError | TrainerCallError) -> None:
        super().__init__(f"{phase}: {cause}")
        self.phase = phase
        self.cause = cause


class Phases:
    """One role change. records: of the phases that ended, in order; mutated by each."""

    def __init__(self, memory: MemoryReader, deadlines: Deadlines, limit_s: float) -> None:
        """deadlines: of the job's model. limit_s: no phase may take longer, whatever its own."""
        self.records: list[RolePhase] = []
        self._memory = memory
        self._deadlines = deadlines
        self._limit_s = limit_s
        self._undos: list[tuple[str, Undo]] = []

    @asynccontextmanager
    async def __call__(self, name: str, *, undo: Undo | None = None) -> AsyncIterator[None]:
        """undo: takes the phase back, whether it was done, half done or not begun. Raises
        PhaseFailed, and what the body raises of a process that is gone; EngineTimeoutError where
        the engine may have changed and did not say so."""
        limit_s = min(deadline_s(name, self._deadlines), self._limit_s)
        if undo is not None:
            self._undos.append((name, undo))
        began = now()
        try:
            async with asyncio.timeout(limit_s):
                yield
        except (EngineRefusedError, TrainerCallError) as error:
            await self._record(name, began, failed=True)
            raise PhaseFailed(name, error) from error
        except TimeoutError as error:
            await self._record(name, began, failed=True)
            words = f"not done after {limit_s:.1f} s"
            if name in _CHANGES_ENGINE:
                raise EngineTimeoutError(f"{name}: {words}") from error
            kind = TrainerTimeout if name in _TRAINERS else EngineTimeoutError
            raise PhaseFailed(name, kind(words)) from error
        await self._record(name, began, failed=False)

    async def undo(self) -> None:
        """Take back what was done, the last phase first. Raises EngineError, TrainerCallError."""
        while self._undos:
            name, undo = self._undos.pop()
            get_logger().info("phase_undone", phase=name)
            limit_s = undo_deadline_s(name, self._deadlines)
            try:
                async with asyncio.timeout(limit_s):
                    await undo()
            except TimeoutError as error:
                raise EngineError(f"{name} was not undone after {limit_s:.1f} s") from error

    async def _record(self, name: str, began: float, *, failed: bool) -> None:
        seconds = now() - began
        memory = await self._memory()
        self.records.append(
            RolePhase(
                name=name,
                seconds=seconds,
                engine_bytes=memory.engine_bytes,
                trainer_bytes=memory.trainer_bytes,
                undone=failed,
            )
        )
