"""Takes in requests' bodies: each within its size and time, all together within their share."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gyre.proxy.faults import overloaded
from gyre.proxy.limits import Limits
from gyre.proxy.requests import BadRequest


class Bodies:
    """num_bytes: of bodies that are being received."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.num_bytes = 0

    async def read(self, request: web.Request) -> bytes:
        """The whole body. Raises BadRequest (413, 408), Fault (overloaded)."""
        if (request.content_length or 0) > self._limits.max_body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
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
