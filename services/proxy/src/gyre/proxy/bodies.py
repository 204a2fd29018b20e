"""Takes in requests' bodies: each within its size and time, all together within their share."""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gyre.proxy.faults import overloaded
from gyre.proxy.limits import Limits
from gyre.proxy.requests import BadRequest

# Content codings, by zlib's number for their format.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Bodies:
    """num_bytes: of bodies that are being received."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.num_bytes = 0
        # One body at a time is unpacked, since each may be a thousand times what was received, and
        # always in the same thread: each keeps to itself what it has once used of memory.
        self._unpacker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="unpack")

    async def read(self, request: web.BaseRequest) -> bytes:
        """The whole body, unpacked. Raises BadRequest (413, 408, 415), Fault (overloaded)."""
        coding = request.headers.get("Content-Encoding", "").strip().lower()
        if coding in ("", "identity"):
            return await self._received(request)
        if coding not in _CODINGS:
            text = f"the body's content-encoding is not one of {', '.join(_CODINGS)}"
            raise BadRequest(text, code="unsupported_encoding", status=415)
        packed = await self._received(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._unpacker, self._unpacked, packed, _CODINGS[coding])

    def _unpacked(self, packed: bytes, form: int) -> bytes:
        """Of no more than is wanted. form: zlib's number for it."""
        unpacker = zlib.decompressobj(form)
        try:
            body = unpacker.decompress(packed, self._limits.max_body_bytes + 1)
        except zlib.error as error:
            raise BadRequest(f"the body cannot be unpacked: {error}") from error
        if len(body) > self._limits.max_body_bytes:
            raise self._too_large()
        if not unpacker.eof:
            raise BadRequest("the body cannot be unpacked: its end is missing")
        return body

    async def _received(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > self._limits.max_body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            if request.content.is_eof():  # a short one comes with its head
                body = request.content.read_nowait()
                if len(body) > self._limits.max_body_bytes:
                    raise self._too_large()
                return body
            async with asyncio.timeout(self._limits.body_timeout_s):
                async for chunk in request.content.iter_any():
                    chunks.append(chunk)
                    size += len(chunk)
                    self.num_bytes += len(chunk)
                    if size > self._limits.max_body_bytes:
                        raise self._too_large()
                    if self.num_bytes > self._limits.max_buffered_bytes:
                        raise overloaded(f"{self.num_bytes} bytes of requests are being received")
        except TimeoutError:
            raise BadRequest(
                f"the body did not arrive within {self._limits.body_timeout_s:g} s",
                code="request_timeout",
                status=408,
            ) from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            request.content.feed_eof()  # nothing of it can be read, so nobody is to try
            raise BadRequest(f"the body cannot be read: {type(error).__name__}") from error
        finally:
            self.num_bytes -= size
        return b"".join(chunks)

    def _too_large(self) -> BadRequest:
        return BadRequest(
            f"the body has more than {self._limits.max_body_bytes} bytes",
            code="request_too_large",
            status=413,
        )
