"""What a cell's two sides hold of the memory that they take turns with."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.adapters.logging import get_logger
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.process_memory import resident_bytes
from gyre.cell_agent.trainer.process.client import TrainerCallError

_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMemory:
    """Bytes of either side's processes, on the device where they have one; None: not known."""

    engine_bytes: int | None = None
    trainer_bytes: int | None = None


async def cell_memory(
    engine_pid: int | None, trainer: TrainerGroup | None, *, on_device: bool
) -> CellMemory:
    """Now; on_device: of the GPU that both use. Of ranks on other machines nothing is known."""
    if on_device and trainer is not None:
        return await _on_device(trainer)
    sizes = [resident_bytes(pid) for pid in trainer.pids_here] if trainer is not None else []
    known = [size for size in sizes if size is not None]
    return CellMemory(
        engine_bytes=resident_bytes(engine_pid), trainer_bytes=sum(known) if known else None
    )


async def _on_device(trainer: TrainerGroup) -> CellMemory:
    """As rank 0 sees its device: what is in use there and not its own is the engine's. Nothing is
    known where the trainer is busy, or has no device."""
    try:
        answer = await trainer.ask_first("memory", _ANSWER_S)
    except TrainerCallError as error:
        get_logger().warning("memory_unknown", error=str(error))
        return CellMemory()
    own, used = answer["device_bytes"], answer["device_used_bytes"]
    return CellMemory(engine_bytes=None if used is None else used - own, trainer_bytes=own)
