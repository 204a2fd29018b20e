"""Where a trainer's memory goes while the engine has the device, chosen by the device.

    cpu: the only memory there is is the one that the engine needs, so contents go to a file
    cuda: contents go to pinned host memory, and the caching allocator gives its blocks back

What is parked keeps its tensors, hooks and process groups: only what is under them is gone until
`unpark`. Gradient buffers are not parked but dropped and made anew, by Megatron's own
`offload_grad_buffers`: nothing is worth keeping in them.

**Never run on a GPU**: what is for cuda here was written from the documentation alone.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from gyre.cell_agent.process_memory import give_back, resident_bytes
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
        for place in self._places:
            whole = place.tensor.detach().new_empty(0)
            place.tensor.data = whole.set_(
                storages[place.storage], place.offset, place.size, place.stride
            )
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
    """In pinned host memory, allocated once and kept: pinning is slow."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._pinned: list[UntypedStorage] = []

    def _keep(self, storages: list[UntypedStorage]) -> None:
        sizes = [storage.nbytes() for storage in storages]
        try:
            if sizes != [pinned.nbytes() for pinned in self._pinned]:
                self._pinned = [
                    torch.empty(size, dtype=torch.uint8, pin_memory=True).untyped_storage()
                    for size in sizes
                ]
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

    def _give_back(self) -> None:
        torch.cuda.empty_cache()


def parking_on(device: torch.device, directory: Path) -> Parking:
    """directory: for the file of a trainer on a CPU."""
    return PinnedParking(device) if device.type == "cuda" else FileParking(device, directory)


def memory_in_use() -> dict[str, int | None]:
    """rss_bytes: of this process. device_bytes: what its allocator holds of its device, None on a
    CPU; device_used_bytes: what all processes hold of that device."""
    device: int | None = None
    used: int | None = None
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        device, used = torch.cuda.memory_reserved(), total - free
    return {
        "rss_bytes": resident_bytes(os.getpid()),
        "device_bytes": device,
        "device_used_bytes": used,
    }


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
