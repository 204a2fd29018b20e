"""Commands that write a checkpoint and resume from one."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.checkpoints.checkpoint import Content, load_checkpoint, save_checkpoint
from gyre.cell_agent.trainer.checkpoints.random_state import random_state, set_random_state
from gyre.cell_agent.trainer.checkpoints.retention import Retention
from gyre.cell_agent.trainer.checkpoints.saving import Saving
from gyre.cell_agent.trainer.checkpoints.trainer_state import TrainerState
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import CheckpointError, WrongState
from gyre.cell_agent.trainer.model.layout import cell_agrees
from gyre.cell_agent.trainer.optimizer import fits
from gyre.cell_agent.trainer.ranks.cell_ranks import CellRanks

NAMES = ("save_checkpoint", "checkpoint_status", "load_checkpoint")
# For who does not say what may go: nothing may.
_KEEP_ALL = 1_000_000_000


class CheckpointCommands(CommandFamily):
    """At most one save goes on at a time; a command that needs another waits for it."""

    _saving: Saving | None = None

    @cached_property
    def _ranks(self) -> CellRanks:
        """First asked for by a command that all ranks of the cell are given."""
        return CellRanks()

    def save_checkpoint(
        self,
        *,
        directory: Path,
        keep: int = _KEEP_ALL,
        protected: list[Path] | None = None,
        asynchronous: bool = False,
    ) -> Answer:
        """The directory must not exist, or hold this very checkpoint. keep, protected: which of the
        checkpoints beside it stay (`retention.py`). asynchronous: answered once everything is
        copied; `checkpoint_status` tells when it is durable."""
        held = self.trainer.require_held()
        self._wait_for_saving()
        content = Content(
            model_path=self.launch.model_path,
            layout=self.launch.layout,
            name=held,
            weights=self.trainer.weights(),
            state=TrainerState(optimizer=self.trainer.optimizer_state(), random=random_state()),
        )
        ranks, retention = self._ranks, Retention(keep=keep, protected=tuple(protected or ()))
        saving = Saving(directory, lambda: save_checkpoint(directory, content, ranks, retention))
        self._saving = saving
        if asynchronous:
            saving.start()
            return _under_way(saving)
        saving.run()
        return _told(saving)

    def checkpoint_status(self, *, directory: Path, wait_s: float = 0.0) -> Answer:
        """Of the save that was asked for last, after at most `wait_s` if it still goes on. Refused
        as `save_checkpoint` is if it failed."""
        if self._saving is None or self._saving.directory != directory:
            raise WrongState(f"{directory}: this trainer saves no such checkpoint")
        self._saving.wait(wait_s)
        # Ranks come out of a save one after the other, and answer alike.
        return _told(self._saving) if cell_agrees(self._saving.over) else _under_way(self._saving)

    def load_checkpoint(
        self, *, directory: Path, lineage: int | None = None, optimizer: bool = True
    ) -> Answer:
        """Weights, optimizer and random state. lineage: the new one that a restore starts.
        optimizer: false on a satellite, which never updates and needs the weights alone."""
        self._wait_for_saving()
        checkpoint = load_checkpoint(
            directory, self.launch.layout, self._ranks, optimizer=optimizer
        )
        manifest, state = checkpoint.manifest, checkpoint.state
        if state.optimizer is not None and not fits(state.optimizer, self.trainer.parameters):
            raise CheckpointError(
                f"{directory}: the optimizer's state is of another model or precision: a job keeps "
                "its model and its training.precision"
            )
        name = WeightsName(
            version=manifest.version, lineage=manifest.lineage if lineage is None else lineage
        )
        self.trainer.set_weights(checkpoint.weights, name)
        self.trainer.set_optimizer_state(state.optimizer)
        set_random_state(state.random)
        named = {"num_updates": manifest.num_updates, "checksum": manifest.sha256}
        return {**named, **self.weights_changed()}

    def _wait_for_saving(self) -> None:
        if self._saving is not None:
            self._saving.wait()


def _under_way(saving: Saving) -> Answer:
    return {"path": str(saving.directory), "done": False}


def _told(saving: Saving) -> Answer:
    """Raises CheckpointError."""
    manifest = saving.result
    return {
        "path": str(saving.directory),
        "done": True,
        "version": manifest.version,
        "lineage": manifest.lineage,
        "sha256": manifest.sha256,
    }
