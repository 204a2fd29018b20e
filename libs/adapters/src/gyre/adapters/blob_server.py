"""Serves the blob store over HTTP to readers that do not share its directory.

    GET /blobs/<digest>     Authorization: Bearer <make_blobs_key(secret)>

200 with the bytes, 400 for what is no digest, 401 without the key, 404 for what is not there.
There is no list and nothing can be written. A blob's bytes go out as they lie: the reader knows the
digest and checks it (`blob_fetch`).
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from gyre.adapters.blobs import DirectoryBlobStore

_BLOBS: web.AppKey[DirectoryBlobStore] = web.AppKey("blobs", DirectoryBlobStore)
_EXPECTED: web.AppKey[str] = web.AppKey("expected", str)


class BlobServerError(Exception):
    """The server cannot listen where it was told to."""


@asynccontextmanager
async def serving_blobs(
    blobs: DirectoryBlobStore, *, host: str, port: int, key: str
) -> AsyncIterator[str]:
    """The server's URL while the block runs. port: 0 for any. Raises BlobServerError."""
    app = web.Application()
    app[_BLOBS], app[_EXPECTED] = blobs, f"Bearer {key}"
    app.router.add_get("/blobs/{digest}", _get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise BlobServerError(
                f"blobs cannot be served at {host}:{port}: {error.strerror}; choose another"
                " GYRE_BLOBS_HOST or GYRE_BLOBS_PORT"
            ) from error
        bound = runner.addresses[0]
        yield f"http://{host}:{bound[1]}"
    finally:
        await runner.cleanup()


async def _get(request: web.Request) -> web.StreamResponse:
    # What is no UTF-8 arrives as surrogates, which do not encode by themselves.
    given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    if not hmac.compare_digest(given, request.app[_EXPECTED].encode()):
        raise web.HTTPUnauthorized(text="a blob is read with the stack's key\n")
    try:
        path = request.app[_BLOBS].path(request.match_info["digest"])
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    if not path.is_file():
        raise web.HTTPNotFound(text="no such blob\n")
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})
