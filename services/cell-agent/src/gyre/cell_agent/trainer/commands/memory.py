"""Commands of a role change: what the trainer gives up while the engine serves."""

from __future__ import annotations

from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily

NAMES = ("offload", "restore")


class MemoryCommands(CommandFamily):
    def offload(self) -> Answer:
        """Frees the gradient buffers. Refused while a batch is open."""
        self.trainer.offload()
        return {}

    def restore(self) -> Answer:
        self.trainer.restore()
        return {}
