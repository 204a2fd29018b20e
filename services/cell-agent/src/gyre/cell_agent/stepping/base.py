"""What all families of duties share, role changes among them."""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.core.cell import Holdings

# A command that only moves memory or reads a local file.
SHORT_S = 60.0
# One micro-step, or writing a checkpoint.
LONG_S = 240.0
# What is dropped with an accumulation ends first: the micro-step under way.
DROP_S = SHORT_S + LONG_S
# Members come to a world, and to a reduction, within the time of their current micro-step; a peer
# is taken for lost only after longer than that.
WORLD_S = 300.0


class DutyFamily:
    """Performs duties by calls of the processes; mutates `held` accordingly. Its methods raise
    TrainerCallError, EngineError, ProcessLost."""

    def __init__(
        self, settings: CellAgentSettings, processes: CellProcesses, held: Holdings
    ) -> None:
        self._settings = settings
        self._processes = processes
        self._held = held

    @property
    def _trainer(self) -> TrainerGroup:
        return self._processes.live_trainer

    @property
    def parked(self) -> Path:
        """Where a trainer on a CPU keeps its tensors while the engine serves."""
        return self._settings.home / "parked"

    def _drop_accumulation(self) -> None:
        """Of what the trainer is known to hold; the trainer itself has dropped it, or will."""
        self._held.accumulating = None
        self._held.trained = set()
