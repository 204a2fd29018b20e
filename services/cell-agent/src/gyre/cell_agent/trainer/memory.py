"""A trainer's tensors while the engine serves: offloaded, restored, and there for a moment.

Invariants:
- offloaded, no parameter, moment or gradient takes memory of the device; only gradients are lost;
- what the tensors are, and what hangs on them, is the same before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from gyre.cell_agent.trainer.device import Parking, parking_on
from gyre.cell_agent.trainer.errors import NoMemory
from gyre.cell_agent.trainer.megatron.megatron_core import DistributedDataParallel


class TrainerMemory:
    """Of one model and whatever else `tensors` finds. Mutated by its methods only."""

    def __init__(self, model: DistributedDataParallel, tensors: Callable[[], list[Tensor]]) -> None:
        self.offloaded = False
        self._model = model
        self._tensors = tensors
        self._parking: Parking | None = None

    def offload(self, directory: Path) -> None:
        """directory: of the file that a trainer on a CPU keeps its tensors in. Raises NoMemory:
        nothing was moved."""
        if self._parking is None:
            device = next(iter(self._model.module.parameters())).device
            self._parking = parking_on(device, directory)
        if not self.offloaded:
            self._park(self._parking)

    def restore(self) -> None:
        """Gradients are zero. Raises NoMemory: still offloaded."""
        if self.offloaded and self._parking is not None:
            self._parking.unpark()
            try:
                self._model.restore_grad_buffers()
            except RuntimeError as error:
                self._park(self._parking)
                raise NoMemory(f"gradients find no memory: {error}") from error
        self.offloaded = False

    @contextmanager
    def resident(self) -> Iterator[None]:
        """The tensors are there meanwhile, whether the engine serves or not. Raises NoMemory."""
        parking = self._parking if self.offloaded else None
        self.restore()
        try:
            yield
        finally:
            if parking is not None:
                self._park(parking)

    def _park(self, parking: Parking) -> None:
        self._model.offload_grad_buffers()
        try:
            parking.park(self._tensors())
        except NoMemory:
            self._model.restore_grad_buffers()
            raise
        self.offloaded = True


class HasMemory(Protocol):
    memory: TrainerMemory


S = TypeVar("S", bound=HasMemory)
P = ParamSpec("P")
T = TypeVar("T")


def resident(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """For a method that may be called while the engine serves: the tensors come back for it."""

    @wraps(method)
    def run(owner: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        with owner.memory.resident():
            return method(owner, *arguments, **named)

    return run
