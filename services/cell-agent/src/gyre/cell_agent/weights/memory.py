"""Memory that a payload lies in: whole pages, of one process or of several of its host."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gyre.cell_agent.weights.errors import CutOff

Memory = Callable[[int], memoryview]
"""Makes writable memory of so many bytes, at a page's start."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


def own_memory(num_bytes: int) -> memoryview:
    """Of this process alone."""
    return memoryview(mmap.mmap(-1, max(1, num_bytes)))[:num_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where other processes of the same `host_name` find memory: a process and its descriptor."""

    process: int
    descriptor: int
    num_bytes: int

    def mapped(self) -> memoryview:
        """The same pages, for the same user's process, as long as the view lives; what is written
        to them is this process's alone. Raises CutOff."""
        try:
            with Path(f"/proc/{self.process}/fd/{self.descriptor}").open("rb") as stream:
                pages = mmap.mmap(stream.fileno(), max(1, self.num_bytes), access=mmap.ACCESS_COPY)
        except OSError as error:
            raise CutOff(f"memory of process {self.process}: {error}") from error
        return memoryview(pages)[: self.num_bytes]


class SharedMemory:
    """A `Memory` whose last pages others may map until the end of its `with`; who has mapped them
    by then keeps them. They are a file without a name, so whoever dies leaves nothing behind."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._num_bytes = 0

    def __call__(self, num_bytes: int) -> memoryview:
        """Raises OSError."""
        self._close()
        self._descriptor, self._num_bytes = os.memfd_create("gyre-weights"), num_bytes
        os.truncate(self._descriptor, max(1, num_bytes))
        return memoryview(mmap.mmap(self._descriptor, max(1, num_bytes)))[:num_bytes]

    @property
    def place(self) -> Place:
        """Of the memory that was made last."""
        if self._descriptor is None:
            raise ValueError("no memory was made")
        return Place(process=os.getpid(), descriptor=self._descriptor, num_bytes=self._num_bytes)

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def host_name() -> str:
    """Equal for two processes if each finds the other below /proc: the kernel's boot and the
    namespace of process ids. Raises OSError."""
    return f"{_BOOT.read_text().strip()}/{_PROCESSES.stat().st_ino}"
