"""HTTP to one engine: every failure of a call becomes one of `errors`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from gyre.cell_agent.engine.errors import (
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
)

CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 30.0
"""Longer than a health check's own 20 s, so that its 503 arrives."""


class EngineConnection:
    """Calls of one engine at `base_url`. Use as an async context manager, or call `aclose`."""

    def __init__(self, base_url: str, *, http: httpx.AsyncClient | None = None) -> None:
        self._owned = http is None
        # No pool limits: an engine's own admission is the limit on concurrent requests.
        self.http = http or httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(CONTROL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self.base_url = base_url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, if this client made them."""
        if self._owned:
            await self.http.aclose()

    async def ok(self, path: str) -> bool:
        """Whether it answers with a status below 400; False for any kind of silence."""
        try:
            await self.get(path)
        except EngineError:
            return False
        return True

    async def get(self, path: str) -> httpx.Response:
        """The answer, whose status is below 400. Raises EngineError."""
        return await self._send("GET", path, None, CONTROL_TIMEOUT_S)

    async def post(
        self, path: str, body: Mapping[str, Any] | None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> httpx.Response:
        """The same for a body, sent as JSON. None: an empty one."""
        return await self._send("POST", path, body, timeout_s)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = await self.http.request(method, path, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"{path}: no answer within {timeout_s} s") from error
        except httpx.TransportError as error:
            raise EngineUnreachableError(f"{self.base_url}{path}: {error!r}") from error
        if response.status_code >= 400:
            raise refusal(path, response)
        return response


def json_object(response: httpx.Response) -> dict[str, Any]:
    """The object in its body. Raises EngineProtocolError."""
    try:
        value = response.json()
    except ValueError as error:
        raise EngineProtocolError(f"not JSON: {response.text:.300}") from error
    if not isinstance(value, dict):
        raise EngineProtocolError(f"not a JSON object: {response.text:.300}")
    return value


def refusal(path: str, response: httpx.Response) -> EngineRefusedError:
    """The message of either error shape, or the text itself."""
    message = response.text.strip()
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        inner = body.get("error")
        holder = inner if isinstance(inner, dict) else body
        message = inner if isinstance(inner, str) else message
        message = str(holder.get("message") or message)
    return EngineRefusedError(path, response.status_code, message)
