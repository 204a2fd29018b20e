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

import torch
from torch import Tensor

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import NoMemory, WrongState
from gyre.cell_agent.trainer.megatron.megatron_core import DistributedDataParallel
from gyre.cell_agent.trainer.parking import FileParking, Parking, PinnedParking


class TrainerMemory:
    """Of one model and whatever else `tensors` finds. Mutated by its methods only.

    The model is made on the host. On a CPU it is there at once; on a GPU, which an engine may have,
    it is offloaded until the first `restore`. Until then it has no gradient buffers, and what loads
    it reads and writes it on the host."""

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device,
        buffered: Callable[[], DistributedDataParallel],
        tensors: Callable[[], list[Tensor]],
    ) -> None:
        """buffered: the module in Megatron's gradient buffers, on its device. Raises NoMemory: what
        was made on the host cannot be pinned there."""
        self.offloaded = device != CPU
        self._buffered, self._tensors = buffered, tensors
        self._parking: Parking | None = None
        self._model: DistributedDataParallel | None = None
        if self.offloaded:
            self._parking = pinned = PinnedParking(device)
            pinned.adopt([*module.parameters(), *module.buffers()])
        else:
            self._model = buffered()

    @property
    def is_readable(self) -> bool:
        """Whether the tensors have their contents: here, or on the host before they came."""
        return not self.offloaded or (self._parking is not None and self._parking.is_readable)

    @property
    def model(self) -> DistributedDataParallel:
        """Raises WrongState: it has never been on its device."""
        if self._model is None:
            raise WrongState("the model has no gradient buffers yet: restore first")
        return self._model

    def offload(self, directory: Path) -> None:
        """directory: of the file that a trainer on a CPU keeps its tensors in. Raises NoMemory:
        nothing was moved."""
        if self._parking is None:
            self._parking = FileParking(CPU, directory)
        if not self.offloaded:
            self._park(self._parking)

    def restore(self) -> None:
        """Gradients are zero. Raises NoMemory: still offloaded."""
        if self.offloaded and self._parking is not None:
            self._parking.unpark()
            try:
                self._take_gradients()
            except RuntimeError as error:
                self._park(self._parking)
                raise NoMemory(f"gradients find no memory: {error}") from error
        self.offloaded = False

    @contextmanager
    def resident(self) -> Iterator[None]:
        """The tensors are there meanwhile, whether the engine serves or not. Raises NoMemory."""
        parking = None if self.is_readable else self._parking
        if parking is not None:
            self.restore()
        try:
            yield
        finally:
            if parking is not None:
                self._park(parking)

    def _take_gradients(self) -> None:
        if self._model is None:
            self._model = self._buffered()
        else:
            self._model.restore_grad_buffers()

    def _park(self, parking: Parking) -> None:
        if self._model is not None:
            self._model.offload_grad_buffers()
        try:
            parking.park(self._tensors())
        except NoMemory:
            self._take_gradients()
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
