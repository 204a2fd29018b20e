"""Where a trainer's memory goes while the engine has the device, chosen by the device.

    cpu: the only memory there is is the one that the engine needs, so contents go to a file
    cuda: contents go to pinned host memory, and the caching allocator gives its blocks back. There
          they also begin: a model is made on the host and comes to the device by the first `unpark`

What is parked keeps its tensors, hooks and process groups: only what is under them is gone until
`unpark`. Gradient buffers are not parked but dropped and made anew, by Megatron's own
`offload_grad_buffers`: nothing is worth keeping in them.

**Never run on a GPU**: what is for cuda here was written from the documentation alone.
"""

from __future__ import annotations

import ctypes
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from gyre.cell_agent.process_memory import give_back
from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import NoMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Where a parked tensor lies: in which of the parked storages, and how."""

    tensor: Tensor
    storage: int
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class Parking(ABC):
    """Keeps the contents of tensors elsewhere. Either nothing is parked or all that was given.

    The storages are replaced, not resized: torch resizes none that numpy has seen once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._places: list[_Place] = []
        self._sizes: list[int] = []

    @property
    def is_readable(self) -> bool:
        """Whether the tensors have their contents though they are parked: they were never on the
        device."""
        return False

    def park(self, tensors: Iterable[Tensor]) -> None:
        """Empty these tensors, and nothing if something is parked. Tensors that share a storage
        share it again afterwards; a view that is not among them goes on holding the old one.
        Raises NoMemory: nothing is changed."""
        if self._places:
            return
        storages, places = _laid_out(tensors, self._device)
        self._keep(storages)
        self._sizes = [storage.nbytes() for storage in storages]
        self._places = places
        for place in places:
            place.tensor.data = place.tensor.detach().new_empty(0)
        storages.clear()
        self._give_back()

    def unpark(self) -> None:
        """Fill them again, if something is parked. Raises NoMemory: they stay parked."""
        if not self._places:
            return
        try:
            storages = [self._storage(size) for size in self._sizes]
            self._fill(storages)
        except (RuntimeError, OSError) as error:
            raise NoMemory(f"parked tensors cannot come back: {error}") from error
        _point(self._places, storages)
        self._places, self._sizes = [], []

    def close(self) -> None:
        """What is parked is lost."""
        self._places, self._sizes = [], []

    def _storage(self, num_bytes: int) -> UntypedStorage:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device).untyped_storage()

    @abstractmethod
    def _keep(self, storages: list[UntypedStorage]) -> None:
        """Copy their contents away. Raises NoMemory."""

    @abstractmethod
    def _fill(self, storages: list[UntypedStorage]) -> None:
        """Copy them back, in the same order. Raises RuntimeError, OSError."""

    @abstractmethod
    def _give_back(self) -> None:
        """Return what the allocator keeps to the device."""


class FileParking(Parking):
    """In one file without a name, which ends with the process. Mutated on every `park`."""

    def __init__(self, device: torch.device, directory: Path) -> None:
        super().__init__(device)
        self._directory = directory
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, storages: list[UntypedStorage]) -> None:
        try:
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                # Open for good, and unbuffered: a buffer would hold a second copy of what passes.
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            self._file.seek(0)
            for storage in storages:
                _write_all(self._file, _bytes_of(storage))
        except OSError as error:
            raise NoMemory(
                f"{self._directory}: no room for the trainer's memory while the engine serves: "
                f"{error}"
            ) from error

    def _fill(self, storages: list[UntypedStorage]) -> None:
        assert self._file is not None
        self._file.seek(0)
        for storage in storages:
            _read_all(self._file, _bytes_of(storage))

    def _give_back(self) -> None:
        give_back()


class PinnedParking(Parking):
    """In pinned host memory, which is kept for the next time: pinning is slow.

    What is adopted is on the host until `unpark` moves it to the device. Such a move costs a tensor
    the hooks of its backward pass: they are to be hung on afterwards."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._pinned: list[UntypedStorage] = []
        self._is_readable = False

    @property
    def is_readable(self) -> bool:
        return self._is_readable

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """What was made on the host is parked there, and may be read and written there. Raises
        NoMemory: it cannot be pinned."""
        storages, self._places = _laid_out(tensors, CPU)
        self._sizes = [storage.nbytes() for storage in storages]
        self._keep(storages)
        _point(self._places, self._pinned)
        self._is_readable = True

    def unpark(self) -> None:
        super().unpark()
        self._is_readable = False

    def _keep(self, storages: list[UntypedStorage]) -> None:
        spare: dict[int, list[UntypedStorage]] = {}
        for pinned in self._pinned:
            spare.setdefault(pinned.nbytes(), []).append(pinned)
        try:
            self._pinned = [self._pinned_storage(storage.nbytes(), spare) for storage in storages]
        except RuntimeError as error:
            self._pinned = []
            raise NoMemory(f"no host memory for what the engine shall have: {error}") from error
        for storage, pinned in zip(storages, self._pinned, strict=True):
            pinned.copy_(storage, non_blocking=True)
        torch.cuda.synchronize()

    def _fill(self, storages: list[UntypedStorage]) -> None:
        for storage, pinned in zip(storages, self._pinned, strict=True):
            storage.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    @staticmethod
    def _pinned_storage(num_bytes: int, spare: dict[int, list[UntypedStorage]]) -> UntypedStorage:
        """One of the spare ones, by size, where there is one."""
        if spare.get(num_bytes):
            return spare[num_bytes].pop()
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).untyped_storage()

    def _give_back(self) -> None:
        torch.cuda.empty_cache()


def _laid_out(
    tensors: Iterable[Tensor], device: torch.device
) -> tuple[list[UntypedStorage], list[_Place]]:
    """The storages under those on the device that are not empty, each once, and their tensors."""
    storages: list[UntypedStorage] = []
    places: list[_Place] = []
    known: dict[int, int] = {}
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type != device.type or not storage.nbytes() or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        index = known.setdefault(storage.data_ptr(), len(storages))
        if index == len(storages):
            storages.append(storage)
        places.append(
            _Place(
                tensor=tensor,
                storage=index,
                offset=int(tensor.storage_offset()),
                size=tensor.size(),
                stride=tensor.stride(),
            )
        )
    return storages, places


def _point(places: Iterable[_Place], storages: list[UntypedStorage]) -> None:
    """Have the tensors lie in these storages again, wherever those are."""
    for place in places:
        storage = storages[place.storage]
        whole = torch.empty(0, dtype=place.tensor.dtype, device=storage.device)
        place.tensor.data = whole.set_(storage, place.offset, place.size, place.stride)


def _bytes_of(storage: UntypedStorage) -> memoryview:
    """Of a storage on the CPU."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def _write_all(file: IO[bytes], view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _read_all(file: IO[bytes], view: memoryview) -> None:
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise OSError("the file of parked tensors is shorter than they are")
        view = view[count:]
