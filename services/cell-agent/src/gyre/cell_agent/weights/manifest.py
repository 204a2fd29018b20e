"""What a payload is: its name, its size, and the digest of each of its chunks.

Chunks have digests of their own so that a puller verifies the first while the next is on its way,
on other threads, and reads nothing twice. They are BLAKE3 (docs/adr/0025): a processor makes more
than twice as many as SHA-256's, and what is pulled is held up by nothing else.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blake3 import blake3

from gyre.cell_agent.weights.errors import Damaged

# Some chunks in flight fit a processor's cache; 32 bytes of digest for each do not weigh.
CHUNK_BYTES = 4 * 1024 * 1024
# Digests of one processor move 3 to 4 GB/s; a faster network takes more of them.
MAX_DIGEST_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """version, lineage: which weights. digests: BLAKE3 of each `chunk_bytes` of the payload, whose
    last chunk may be shorter."""

    version: int
    lineage: int
    num_bytes: int
    chunk_bytes: int
    digests: tuple[bytes, ...]

    @cached_property
    def checksum(self) -> str:
        """Of the whole payload: BLAKE3 over the chunks' digests, hex."""
        return _digest(memoryview(b"".join(self.digests))).hex()

    def chunk(self, payload: memoryview, index: int) -> memoryview:
        start = index * self.chunk_bytes
        return payload[start : min(start + self.chunk_bytes, self.num_bytes)]

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "lineage": self.lineage,
            "num_bytes": self.num_bytes,
            "chunk_bytes": self.chunk_bytes,
            "digests": b"".join(self.digests).hex(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """Raises Damaged: not one that `as_json` made."""
        try:
            joined = bytes.fromhex(value["digests"])
            size = blake3.digest_size
            made = cls(
                version=int(value["version"]),
                lineage=int(value["lineage"]),
                num_bytes=int(value["num_bytes"]),
                chunk_bytes=int(value["chunk_bytes"]),
                digests=tuple(
                    joined[start : start + size] for start in range(0, len(joined), size)
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"no manifest of weights: {error!r}") from error
        if made.chunk_bytes < 1 or len(joined) != size * -(-made.num_bytes // made.chunk_bytes):
            raise Damaged("the manifest's digests do not fit its size")
        return made


def digest_threads() -> ThreadPoolExecutor:
    """Threads that make or verify digests; those of a whole chunk let the others run meanwhile."""
    count = min(MAX_DIGEST_THREADS, max(1, (os.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(count, thread_name_prefix="weights-digest")


def make_manifest(
    payload: memoryview, *, version: int, lineage: int, threads: ThreadPoolExecutor
) -> Manifest:
    digests = threads.map(_digest, list(_chunks(payload)))
    return Manifest(
        version=version,
        lineage=lineage,
        num_bytes=len(payload),
        chunk_bytes=CHUNK_BYTES,
        digests=tuple(digests),
    )


class Verifier:
    """Verifies a payload as it fills up, chunk after chunk, on threads of its own.

    `arrived` may be called from one thread; `finish` once, at the end. Use as a context manager: it
    ends the threads.
    """

    def __init__(self, manifest: Manifest, payload: memoryview) -> None:
        self._manifest = manifest
        self._payload = payload
        self._threads = digest_threads()
        self._num_begun = 0
        # By chunk, in order, without those that were found to match.
        self._pending: deque[tuple[int, Future[bool]]] = deque()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def arrived(self, num_bytes: int) -> None:
        """The payload is there up to `num_bytes`. Raises Damaged as soon as a chunk is."""
        whole = num_bytes // self._manifest.chunk_bytes
        if num_bytes == self._manifest.num_bytes:
            whole = len(self._manifest.digests)
        for index in range(self._num_begun, whole):
            self._pending.append((index, self._threads.submit(self._matches, index)))
        self._num_begun = max(self._num_begun, whole)
        while self._pending and self._pending[0][1].done():
            self._require_next()

    def finish(self) -> None:
        """Waits for the rest. Raises Damaged."""
        while self._pending:
            self._require_next()

    def _require_next(self) -> None:
        index, checked = self._pending.popleft()
        if not checked.result():
            start = index * self._manifest.chunk_bytes
            end = start + self._manifest.chunk_bytes
            raise Damaged(f"bytes {start} to {end} do not match their digest")

    def _matches(self, index: int) -> bool:
        return _digest(self._manifest.chunk(self._payload, index)) == self._manifest.digests[index]


def _chunks(payload: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(payload), CHUNK_BYTES):
        yield payload[start : start + CHUNK_BYTES]


def _digest(chunk: memoryview) -> bytes:
    return blake3(chunk).digest()
