"""Commands of a role change: what the trainer gives up while the engine serves.

The engine has that memory alone from `offload` to `restore`, but for loads and checksums. A process
that starts while the engine serves holds its own until its first `offload`, on a GPU not before its
first `restore`.
"""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.process_memory import give_back
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.device import memory_in_use

NAMES = ("offload", "restore", "memory")


class MemoryCommands(CommandFamily):
    def offload(self, *, directory: Path) -> Answer:
        """Gives up the memory of parameters, moments and gradients, and serves no weights any more.
        Refused while a batch is open, and where there is no room for what is kept: on a CPU a file
        in `directory`. Loads and checksums go on working, and take all of it again meanwhile, the
        gradients too, beside the engine: without room for both they are refused (no_memory)."""
        self.trainer.offload(directory)
        self.is_serving, self.exposed = False, None
        if self.source is not None:
            self.source.close()
            self.source = None
            give_back()
        return {}

    def restore(self) -> Answer:
        """Takes it again; gradients are zero."""
        self.trainer.memory.restore()
        return {}

    def memory(self) -> Answer:
        return dict(memory_in_use())
