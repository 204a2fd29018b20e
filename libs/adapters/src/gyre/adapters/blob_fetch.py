"""Reads a blob where its reader finds it: from the directory that writer and reader share, or over
HTTP from `blob_server`.

What is returned has the digest that was asked for. A server that is away, an answer that is cut
short and one that was altered on its way are asked for again until the deadline; a refusal is
final.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from gyre.adapters.blobs import BlobCorrupt, BlobError, BlobMissing, DirectoryBlobStore, digest_of

# A service that was killed is back within seconds; and a trainer that does not answer for longer
# than this is taken to hang.
DEADLINE_S = 20.0
# Of one attempt's connection and of each read: a peer that is gone does not always say so.
_SOCKET_S = 10.0
_PAUSE_S = 0.25
_CHUNK_BYTES = 1 << 20
# A micro-step of a million tokens has about 40 MB: more than this is no body of ours.
MAX_BYTES = 1 << 30


class BlobUnavailable(BlobError):
    """The server could not be reached, or did not answer well, until the deadline."""


class BlobRefused(BlobError):
    """The server or the directory answered, and will answer the same again."""


def blob_source(url: str | None, blobs: DirectoryBlobStore, digest: str) -> str:
    """What `fetch_body` is to be given: a URL below `url`, or without one a path in `blobs`.
    Raises ValueError unless `digest` is one."""
    path = blobs.path(digest)
    return str(path) if url is None else f"{url.rstrip('/')}/blobs/{digest}"


def fetch_body(
    source: str,
    digest: str,
    key: str = "",
    *,
    deadline_s: float = DEADLINE_S,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """source: an http(s) URL, or else a path. key: the bearer of the server, which `keys` makes.
    Blocks, for `deadline_s` and one read at most. Raises BlobMissing, BlobCorrupt, BlobUnavailable,
    BlobRefused; none of them names the key."""
    where = urlsplit(source)
    if where.scheme in ("http", "https"):
        request = _Request(where=where, digest=digest, key=key, max_bytes=max_bytes)
        return _until(time.monotonic() + deadline_s, request)
    return _from_path(Path(source), digest, max_bytes)


def _from_path(path: Path, digest: str, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise BlobMissing(f"{path}: no such file") from None
    except OSError as error:
        raise BlobRefused(f"{path}: {error.strerror}") from error
    return _checked(str(path), data, digest, max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    where: SplitResult
    digest: str
    key: str
    max_bytes: int

    @property
    def url(self) -> str:
        return self.where.geturl()


def _until(deadline: float, request: _Request) -> bytes:
    while True:
        try:
            return _attempt(request, deadline)
        except (OSError, http.client.HTTPException, BlobCorrupt, BlobUnavailable) as error:
            if time.monotonic() + _PAUSE_S >= deadline:
                if isinstance(error, BlobError):
                    raise
                words = str(error) or type(error).__name__
                raise BlobUnavailable(f"{request.url}: {words}") from error
        # Waits for a server to come back, not for a race to end: each attempt stands alone.
        time.sleep(_PAUSE_S)


def _attempt(request: _Request, deadline: float) -> bytes:
    where = request.where
    # Straight to the server: a proxy for the outside world does not know the job's network.
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=_SOCKET_S)
    try:
        connection.request("GET", where.path, headers={"Authorization": f"Bearer {request.key}"})
        answer = connection.getresponse()
        _refuse(request.url, answer.status)
        data = b"".join(_chunks(answer, request, deadline))
    finally:
        connection.close()
    return _checked(request.url, data, request.digest, request.max_bytes)


def _refuse(url: str, status: int) -> None:
    if status == http.client.OK:
        return
    if status == http.client.NOT_FOUND:
        raise BlobMissing(f"{url}: the server has no such blob")
    if status == http.client.UNAUTHORIZED:
        raise BlobRefused(f"{url}: refused the key; both sides need the same GYRE_KEY_SECRET")
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise BlobUnavailable(f"{url}: status {status}")
    raise BlobRefused(f"{url}: status {status}")


def _chunks(
    answer: http.client.HTTPResponse, request: _Request, deadline: float
) -> Iterator[bytes]:
    """Up to one chunk beyond the limit, which `_checked` then finds."""
    num_bytes = 0
    # As much as has come: to wait for a whole chunk is to give each of its bytes a time-out.
    while num_bytes <= request.max_bytes and (chunk := answer.read1(_CHUNK_BYTES)):
        num_bytes += len(chunk)
        yield chunk
        if time.monotonic() > deadline:
            raise BlobUnavailable(f"{request.url}: {num_bytes} bytes came before the deadline")


def _checked(source: str, data: bytes, digest: str, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise BlobRefused(f"{source}: more than {max_bytes} bytes")
    if (found := digest_of(data)) != digest:
        raise BlobCorrupt(f"{source}: {len(data)} bytes with digest {found}, not {digest}")
    return data
