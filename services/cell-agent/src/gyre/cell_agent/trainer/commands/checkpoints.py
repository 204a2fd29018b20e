"""Commands that write a checkpoint and resume from one."""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.checkpoint import load_checkpoint, save_checkpoint
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import CheckpointError

NAMES = ("save_checkpoint", "load_checkpoint")


class CheckpointCommands(CommandFamily):
    def save_checkpoint(self, *, directory: Path) -> Answer:
        """The directory must not exist, or hold this very checkpoint."""
        held = self.trainer.require_held()
        try:
            manifest = save_checkpoint(
                directory,
                model_path=self.launch.model_path,
                weights=self.trainer.weights(),
                optimizer=self.trainer.optimizer_state(),
                version=held.version,
                lineage=held.lineage,
            )
        except OSError as error:
            raise CheckpointError(f"{directory}: {error}") from error
        return {
            "path": str(directory),
            "version": manifest.version,
            "lineage": manifest.lineage,
            "sha256": manifest.sha256,
        }

    def load_checkpoint(self, *, directory: Path, lineage: int | None = None) -> Answer:
        """Weights and optimizer state. lineage: the new one that a restore starts."""
        checkpoint = load_checkpoint(directory)
        manifest = checkpoint.manifest
        name = WeightsName(
            version=manifest.version, lineage=manifest.lineage if lineage is None else lineage
        )
        self.trainer.set_weights(checkpoint.weights, name)
        self.trainer.set_optimizer_state(checkpoint.optimizer)
        return {"num_updates": manifest.num_updates, **self.weights_changed()}
