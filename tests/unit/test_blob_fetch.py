"""Blobs over HTTP: what is read has the digest that was asked for, by whoever has the key alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gyre.adapters.blob_fetch import (
    BlobRefused,
    BlobUnavailable,
    blob_source,
    fetch_body,
)
from gyre.adapters.blob_server import BlobServerError, serving_blobs
from gyre.adapters.blobs import BlobCorrupt, BlobMissing, DirectoryBlobStore, digest_of
from gyre.adapters.keys import make_blobs_key

KEY = make_blobs_key("secret")
BODY = bytes(range(256)) * 9000  # several chunks
ABSENT = digest_of(b"nobody wrote this")


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "blobs")


@contextmanager
def served(blobs: DirectoryBlobStore) -> Iterator[str]:
    """The real server, on a thread with a loop of its own: readers block."""
    url: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving_blobs(blobs, host="127.0.0.1", port=0, key=KEY) as at:
            url.append(at)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10.0)
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class Crooked(BaseHTTPRequestHandler):
    """Answers each request as the next of `plan` says, the last of them for ever."""

    plan: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        what = self.plan[min(len(self.asked), len(self.plan)) - 1]
        body = bytes([BODY[0] ^ 1]) + BODY[1:] if what == "altered" else BODY
        self.send_response(503 if what == "busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if what == "slow":
            self._trickle(body)
            return
        self.wfile.write(body[: len(body) // 2] if what == "cut" else body)
        self.close_connection = True

    def _trickle(self, body: bytes) -> None:
        self.close_connection = True
        for at in range(100):  # 5 s, unless the reader goes
            try:
                self.wfile.write(body[at : at + 1])
            except ConnectionError:
                return
            time.sleep(0.05)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Tells nobody."""


@contextmanager
def crooked(*plan: str) -> Iterator[str]:
    Crooked.plan, Crooked.asked = list(plan), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Crooked)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/blobs/{digest_of(BODY)}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_body_comes_from_the_server_as_from_the_directory(blobs: DirectoryBlobStore) -> None:
    digest = blobs.put(BODY)
    assert fetch_body(blob_source(None, blobs, digest), digest) == BODY
    with served(blobs) as url:
        assert fetch_body(blob_source(url, blobs, digest), digest, KEY) == BODY
        assert fetch_body(blob_source(f"{url}/", blobs, digest), digest, KEY) == BODY


def test_a_proxy_for_the_outside_world_is_not_asked(
    blobs: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    digest = blobs.put(BODY)
    with served(blobs) as url:
        assert fetch_body(blob_source(url, blobs, digest), digest, KEY) == BODY


@pytest.mark.parametrize("key", ["", "another", make_blobs_key("another secret"), "s\u00e9same"])
def test_without_the_key_nothing_is_read_and_none_is_named(
    blobs: DirectoryBlobStore, key: str
) -> None:
    digest = blobs.put(BODY)
    with served(blobs) as url, pytest.raises(BlobRefused, match="refused the key") as refused:
        fetch_body(blob_source(url, blobs, digest), digest, key)
    assert not key or key not in str(refused.value)
    assert KEY not in str(refused.value)


def test_what_is_not_there_is_missing(blobs: DirectoryBlobStore) -> None:
    with pytest.raises(BlobMissing):
        fetch_body(blob_source(None, blobs, ABSENT), ABSENT)
    with served(blobs) as url, pytest.raises(BlobMissing):
        fetch_body(blob_source(url, blobs, ABSENT), ABSENT, KEY)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/blobs", 404),
        ("/blobs/", 404),
        ("/blobs/ab", 400),
        ("/blobs/..%2f..%2fsecret", 400),
        (f"/blobs/{ABSENT.upper()}", 400),
        (f"/blobs/{ABSENT}/x", 404),
    ],
)
def test_there_is_no_list_and_no_other_file(
    blobs: DirectoryBlobStore, path: str, status: int
) -> None:
    blobs.put(BODY)
    (blobs.root.parent / "secret").write_text("not a blob")
    with served(blobs) as url:
        address = url.removeprefix("http://")
        with closing(HTTPConnection(address, timeout=10)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
            assert connection.getresponse().status == status


@pytest.mark.parametrize("fault", ["cut", "altered", "busy"])
def test_an_answer_that_is_not_the_blob_is_asked_for_again(fault: str) -> None:
    with crooked(fault, fault, "well") as url:
        assert fetch_body(url, digest_of(BODY)) == BODY
        assert len(Crooked.asked) == 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [("cut", BlobCorrupt), ("altered", BlobCorrupt), ("busy", BlobUnavailable)],
)
def test_one_that_stays_wrong_is_an_error_at_the_deadline(
    fault: str, error: type[Exception]
) -> None:
    with crooked(fault) as url, pytest.raises(error):
        fetch_body(url, digest_of(BODY), deadline_s=0.6)


def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline() -> None:
    with crooked("slow") as url:
        started = time.monotonic()
        with pytest.raises(BlobUnavailable, match="before the deadline"):
            fetch_body(url, digest_of(BODY), deadline_s=0.6)
        assert time.monotonic() - started < 3.0


def test_a_server_that_is_away_is_waited_for_until_the_deadline() -> None:
    with crooked("well") as url:
        pass
    with pytest.raises(BlobUnavailable, match="refused"):
        fetch_body(url, digest_of(BODY), deadline_s=0.6)


def test_more_than_the_limit_is_not_read(blobs: DirectoryBlobStore) -> None:
    digest = blobs.put(BODY)
    with pytest.raises(BlobRefused, match="more than 1000 bytes"):
        fetch_body(blob_source(None, blobs, digest), digest, max_bytes=1000)
    with served(blobs) as url, pytest.raises(BlobRefused, match="more than 1000 bytes"):
        fetch_body(blob_source(url, blobs, digest), digest, KEY, max_bytes=1000)


def test_a_file_that_was_altered_is_not_the_blob(blobs: DirectoryBlobStore) -> None:
    digest = blobs.put(BODY)
    blobs.path(digest).write_bytes(BODY[:-1])
    with pytest.raises(BlobCorrupt):
        fetch_body(blob_source(None, blobs, digest), digest)


async def test_a_port_that_is_taken_is_named(blobs: DirectoryBlobStore) -> None:
    async with serving_blobs(blobs, host="127.0.0.1", port=0, key=KEY) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(BlobServerError, match="GYRE_BLOBS_PORT"):
            async with serving_blobs(blobs, host="127.0.0.1", port=port, key=KEY):
                raise AssertionError("two servers on one port")
