"""What a source serves: buffers that its trainer writes, and their digests, made on other threads.

    buffer() -> written by the trainer's thread -> expose() -> digests on threads -> pulls

A buffer is charged to whoever reads it: the exposure that names it, the digests being made, each
pull. One that nobody reads is written again; so two are enough, three when weights are kept, and
what is being pulled is never overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from gyre.cell_agent.weights.errors import WrongVersion
from gyre.cell_agent.weights.manifest import Manifest, digest_threads, make_manifest
from gyre.cell_agent.weights.memory import own_memory


class Buffer:
    """Memory of one payload. num_readers: who holds it; see the module."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.num_readers = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Exposed:
    """Weights that are served. `manifest` is there once the digests are made."""

    version: int
    lineage: int
    buffer: Buffer
    manifest: Future[Manifest]


class Shelf:
    """The newest weights, and those that are kept beside them. Thread-safe.

    added, dropped: told of each buffer that comes and goes.
    """

    def __init__(
        self,
        added: Callable[[Buffer], None] = lambda _: None,
        dropped: Callable[[Buffer], None] = lambda _: None,
    ) -> None:
        self._added, self._dropped = added, dropped
        self._lock = threading.Lock()
        self._buffers: list[Buffer] = []
        self._newest: Exposed | None = None
        self._kept: Exposed | None = None
        self._is_forgotten = False
        self._digests = digest_threads()
        # One after the other, so that older weights' digests do not hold up newer ones' for long.
        self._making = ThreadPoolExecutor(1, thread_name_prefix="weights-manifest")

    def buffer(self, num_bytes: int) -> Buffer:
        """One that nobody reads; the caller alone writes to it until it is exposed."""
        with self._lock:
            for buffer in self._buffers:
                if buffer.num_readers == 0 and len(buffer.view) == num_bytes:
                    return buffer
            self._drop_unread()
        buffer = Buffer(own_memory(num_bytes))
        self._added(buffer)
        with self._lock:
            self._buffers.append(buffer)
        return buffer

    def expose(self, buffer: Buffer, *, version: int, lineage: int) -> None:
        with self._lock:
            buffer.num_readers += 2  # what is newest, and its digests
        manifest = self._making.submit(
            make_manifest, buffer.view, version=version, lineage=lineage, threads=self._digests
        )
        manifest.add_done_callback(lambda _: self._release(buffer))
        exposed = Exposed(version=version, lineage=lineage, buffer=buffer, manifest=manifest)
        with self._lock:
            before, self._newest = self._newest, exposed
            self._is_forgotten = False
        if before is not None:
            self._release(before.buffer)

    def keep(self) -> None:
        """Of the newest weights, if there are some."""
        with self._lock:
            before, self._kept = self._kept, self._newest
            if self._kept is not None:
                self._kept.buffer.num_readers += 1
        if before is not None:
            self._release(before.buffer)

    def newest(self) -> Exposed | None:
        with self._lock:
            return self._newest

    @contextmanager
    def reading(self, version: int, lineage: int) -> Iterator[Exposed]:
        """These weights, not overwritten meanwhile. Raises WrongVersion."""
        with self._lock:
            exposed = self._named(version, lineage)
            exposed.buffer.num_readers += 1
        try:
            yield exposed
        finally:
            self._release(exposed.buffer)

    def forget(self) -> None:
        """The newest weights are not served any more; buffers that nobody reads are given back."""
        with self._lock:
            before, self._newest = self._newest, None
            self._is_forgotten = True
        if before is not None:
            self._release(before.buffer)
        with self._lock:
            self._drop_unread()

    def close(self) -> None:
        self._making.shutdown(wait=True, cancel_futures=True)
        self._digests.shutdown(wait=True)
        with self._lock:
            self._newest = self._kept = None
            for buffer in self._buffers:
                self._dropped(buffer)
            self._buffers = []

    def _named(self, version: int, lineage: int) -> Exposed:
        for exposed in (self._newest, self._kept):
            if exposed is not None and (exposed.version, exposed.lineage) == (version, lineage):
                return exposed
        if self._newest is None:
            raise WrongVersion("no weights are exposed")
        held = (self._newest.version, self._newest.lineage)
        raise WrongVersion(f"asked for (version, lineage) {(version, lineage)}, exposed is {held}")

    def _release(self, buffer: Buffer) -> None:
        with self._lock:
            buffer.num_readers -= 1
            if self._is_forgotten and buffer.num_readers == 0:
                self._drop_unread()  # a pull that went on

    def _drop_unread(self) -> None:
        unread = [buffer for buffer in self._buffers if buffer.num_readers == 0]
        self._buffers = [buffer for buffer in self._buffers if buffer.num_readers > 0]
        for buffer in unread:
            self._dropped(buffer)
