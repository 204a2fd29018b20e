"""The trainer's commands: name and JSON arguments in, a JSON object or a TrainerError out.

One family a module, each a part of `TrainerCommands`; its NAMES are those that may be called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pydantic import ValidationError, validate_call

from gyre.cell_agent.trainer.commands import batches, checkpoints, memory, weights, worlds
from gyre.cell_agent.trainer.commands.base import Answer
from gyre.cell_agent.trainer.commands.batches import BatchCommands
from gyre.cell_agent.trainer.commands.checkpoints import CheckpointCommands
from gyre.cell_agent.trainer.commands.memory import MemoryCommands
from gyre.cell_agent.trainer.commands.weights import WeightCommands
from gyre.cell_agent.trainer.commands.worlds import WorldCommands
from gyre.cell_agent.trainer.errors import BadCommand

NAMES = (
    "configure",
    "status",
    *weights.NAMES,
    *worlds.NAMES,
    *batches.NAMES,
    *checkpoints.NAMES,
    *memory.NAMES,
)


class TrainerCommands(
    WeightCommands, WorldCommands, BatchCommands, CheckpointCommands, MemoryCommands
):
    """One method per command. Arguments are checked against the method's annotations."""

    @cached_property
    def _methods(self) -> dict[str, Callable[..., Answer]]:
        return {name: validate_call(getattr(self, name)) for name in NAMES}

    def run(self, command: str, arguments: Mapping[str, Any]) -> Answer:
        """Raises TrainerError. Anything else raised is a defect: the process should not go on."""
        method = self._methods.get(command)
        if method is None:
            raise BadCommand(f"no command is called {command!r}")
        try:
            return method(**arguments)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise BadCommand(f"{command}: {name}: {first['msg']}") from error


__all__ = ["NAMES", "TrainerCommands"]
