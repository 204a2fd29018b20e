"""What tests ask of a trainer that takes several calls, whichever end of it they hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from gyre.cell_agent.trainer.process.client import TrainerCallError


class Trainer(Protocol):
    """A `TrainerProcess` or a `TrainerGroup`."""

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


async def micro_step(
    trainer: Trainer, path: Path, timeout_s: float, *, digest: str | None = None
) -> dict[str, Any]:
    """Into the gradients of the open batch; its report."""
    await trainer.call("submit_step", timeout_s, source=path, digest=digest)
    flushed = await trainer.call("flush_steps", timeout_s)
    report: dict[str, Any] = flushed["reports"][-1]
    return report


async def stopped(trainer: Trainer, timeout_s: float = 10.0) -> int:
    """Asks it to exit, kills it at the deadline, returns its exit status."""
    try:
        await trainer.call("exit", timeout_s)
        return await asyncio.wait_for(trainer.wait(), timeout_s)
    except (TrainerCallError, TimeoutError):
        trainer.kill()
        return await trainer.wait()
