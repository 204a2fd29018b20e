"""What all families of duties share, role changes among them."""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.phases import Phases
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.core.cell import CellState, Holdings


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

    def _phases(self, state: CellState) -> Phases:
        """Of a change that begins now."""
        limit_s = state.required_spec.schedule.transition_deadline_s
        return Phases(self._processes.memory, self._processes.deadlines(state), limit_s)

    def _drop_accumulation(self) -> None:
        """Of what the trainer is known to hold; the trainer itself has dropped it, or will."""
        self._held.accumulating = None
        self._held.trained = set()
