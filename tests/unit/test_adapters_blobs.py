"""The blob store: what a digest promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gyre.adapters.blobs import (
    BlobCorrupt,
    BlobMissing,
    BlobStore,
    DirectoryBlobStore,
    MemoryBlobStore,
    digest_of,
)


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return (
        DirectoryBlobStore(tmp_path / "blobs")
        if request.param == "directory"
        else (MemoryBlobStore())
    )


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096])
def test_a_blob_comes_back_under_its_digest(store: BlobStore, data: bytes) -> None:
    digest = store.put(data)
    assert digest == digest_of(data)
    assert store.get(digest) == data
    assert store.has(digest)


def test_a_second_put_is_the_same_blob(store: BlobStore) -> None:
    assert store.put(b"same") == store.put(b"same")


def test_an_unknown_digest_is_missing(store: BlobStore) -> None:
    unknown = digest_of(b"never stored")
    assert not store.has(unknown)
    with pytest.raises(BlobMissing, match=unknown):
        store.get(unknown)


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "a" * 63])
def test_what_is_no_digest_never_becomes_a_path(store: BlobStore, bad: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        store.get(bad)


def test_a_changed_blob_is_corrupt(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path)
    digest = store.put(b"the original")
    store.path(digest).chmod(0o644)
    store.path(digest).write_bytes(b"the orIginal")
    with pytest.raises(BlobCorrupt, match=digest):
        store.get(digest)


def test_a_put_mends_a_truncated_blob(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path)
    digest = store.put(b"whole")
    store.path(digest).chmod(0o644)
    store.path(digest).write_bytes(b"wh")
    assert store.put(b"whole") == digest
    assert store.get(digest) == b"whole"


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryBlobStore(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    store.put(b"first")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(b"second")
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [digest_of(b"first")]
