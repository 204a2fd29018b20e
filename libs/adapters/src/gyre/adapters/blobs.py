"""Content-addressed blobs: bodies too large for the event log, written before the event.

A digest is the lower-case hex sha256 of the content, so a blob is immutable, a second put is
free and a reader can check what it got.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Protocol

from gyre.adapters.files import sync_directory, write_then_rename

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(Exception):
    """A blob could not be read."""


class BlobMissing(BlobError):
    """No blob has this digest."""


class BlobCorrupt(BlobError):
    """The stored bytes do not have the digest that names them."""


class BlobStore(Protocol):
    """Immutable bytes by digest. Once `put` returns, the blob outlives a power loss."""

    def put(self, data: bytes) -> str:
        """Stores `data` and returns its digest. Idempotent."""
        ...

    def get(self, digest: str) -> bytes:
        """The verified content. Raises BlobMissing, BlobCorrupt, ValueError (no digest)."""
        ...

    def has(self, digest: str) -> bool:
        """Whether the blob is there (not whether it is sound)."""
        ...


def digest_of(data: bytes) -> str:
    """Lower-case hex sha256, 64 characters."""
    return hashlib.sha256(data).hexdigest()


class DirectoryBlobStore:
    """One file a blob under `root`, fanned out by the first two digits.

    A blob is written to a temporary file, synced, renamed, and its directory synced: a reader
    sees the whole blob or none, whatever dies in between.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie. Raises ValueError unless `digest` is one."""
        _check_digest(digest)
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def put(self, data: bytes) -> str:
        digest = digest_of(data)
        target = self.path(digest)
        if target.is_file() and target.stat().st_size == len(data):
            # Its writer may have died between rename and directory sync.
            sync_directory(target.parent)
            return digest
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(self.root)
            sync_directory(self.root.parent)
        write_then_rename(data, target)
        return digest

    def get(self, digest: str) -> bytes:
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise BlobMissing(f"no blob {digest} in {self.root}") from None
        return _verified(data, digest)


class MemoryBlobStore:
    """Blobs in a dictionary, for tests."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def has(self, digest: str) -> bool:
        _check_digest(digest)
        return digest in self._blobs

    def put(self, data: bytes) -> str:
        digest = digest_of(data)
        self._blobs[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes:
        _check_digest(digest)
        if digest not in self._blobs:
            raise BlobMissing(f"no blob {digest} in memory")
        return self._blobs[digest]


def _check_digest(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a lower-case hex sha256")


def _verified(data: bytes, digest: str) -> bytes:
    found = digest_of(data)
    if found != digest:
        raise BlobCorrupt(f"blob {digest} holds {len(data)} bytes with digest {found}")
    return data
