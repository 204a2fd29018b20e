"""The port to an inference engine that speaks SGLang's native HTTP API.

`EngineClient` is what the cell agent drives an engine with, whichever program it is. It keeps
to the part of the API that both engines share (see README.md), turns every failure into one of
the errors below, and sends nothing that is known to kill a server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from gyre.cell_agent.engine.errors import (
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from gyre.cell_agent.engine.events import event_texts
from gyre.cell_agent.engine.generation import Generation, VersionSpan, parse_generation

__all__ = [
    "EngineClient",
    "EngineError",
    "EngineProtocolError",
    "EngineRefusedError",
    "EngineTimeoutError",
    "EngineUnreachableError",
    "Generation",
    "PauseMode",
    "VersionSpan",
    "parse_generation",
]

PauseMode = Literal["abort", "in_place", "retract"]

CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 30.0
"""Longer than a health check's own 20 s, so that its 503 arrives."""

GENERATE_TIMEOUT_S = 600.0
UPDATE_TIMEOUT_S = 600.0


class EngineClient:
    """Calls of one engine at `base_url`. Use as an async context manager, or call `aclose`."""

    def __init__(self, base_url: str, *, http: httpx.AsyncClient | None = None) -> None:
        self._owned = http is None
        # No pool limits: an engine's own admission is the limit on concurrent requests.
        self._http = http or httpx.AsyncClient(
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
            await self._http.aclose()

    async def generate(
        self,
        *,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        rid: str,
        return_logprob: bool = True,
        extra_key: str | None = None,
        timeout_s: float = GENERATE_TIMEOUT_S,
    ) -> Generation:
        """Generate to the end. An abort answers with what there was (`finish_type` abort)."""
        body = _generate_body(input_ids, sampling_params, rid, return_logprob, extra_key)
        return parse_generation(_object(await self._post("/generate", body, timeout_s)))

    async def stream(
        self,
        *,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        rid: str,
        return_logprob: bool = True,
        extra_key: str | None = None,
        timeout_s: float = GENERATE_TIMEOUT_S,
    ) -> AsyncIterator[Generation]:
        """Yield cumulative answers; the last one has a `finish_type`. Closing it early aborts.

        `timeout_s` bounds the wait between two events.
        """
        body = _generate_body(input_ids, sampling_params, rid, return_logprob, extra_key)
        body["stream"] = True
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.stream(
                "POST", "/generate", json=body, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise _refused("/generate", response)
                async for text in event_texts(response.aiter_bytes()):
                    yield _parse_event(text)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"/generate: no event within {timeout_s} s") from error
        except httpx.TransportError as error:
            raise EngineUnreachableError(f"{self.base_url}/generate: {error!r}") from error

    async def abort(self, rid: str | None = None, *, pin_s: float | None = None) -> None:
        """Abort the request with this rid, or all of them when None.

        A known rid also aborts those it is a prefix of: give all rids the same length. pin_s: how
        long an engine that can copy cached prefixes keeps those of the aborted for a copy.
        """
        body: dict[str, Any] = {"abort_all": True} if rid is None else {"rid": rid}
        if pin_s is not None:
            body["pin_s"] = pin_s
        await self._post("/abort_request", body)

    async def pause(self, mode: PauseMode) -> None:
        """Hold the engine; `retract` keeps running requests and lets the cache be flushed."""
        await self._post("/pause_generation", {"mode": mode}, UPDATE_TIMEOUT_S)

    async def resume(self) -> None:
        """Undo a pause."""
        await self._post("/continue_generation", {})

    async def flush_cache(self, wait_s: float = 0.0) -> None:
        """Drop cached prefixes; refused while requests run longer than `wait_s`."""
        await self._post(f"/flush_cache?timeout={wait_s}", None, CONTROL_TIMEOUT_S + wait_s)

    async def update_weights_from_disk(
        self, model_path: str, *, weight_version: str, flush_cache: bool = True
    ) -> None:
        """Load a checkpoint. Unpaused this waits until running requests have ended."""
        body = {
            "model_path": model_path,
            "weight_version": weight_version,
            "flush_cache": flush_cache,
        }
        await self._post("/update_weights_from_disk", body, UPDATE_TIMEOUT_S)

    async def update_weight_version(self, version: str, *, abort_all: bool = False) -> None:
        """Rename the version of the weights in service."""
        body = {"new_version": version, "abort_all_requests": abort_all}
        await self._post("/update_weight_version", body)

    async def checksum(self) -> str:
        """Digest of the weights in service, comparable between engines of one kind."""
        answer = _object(
            await self._post("/weights_checker", {"action": "checksum"}, UPDATE_TIMEOUT_S)
        )
        digest = answer.get("per_engine_checksum")
        if not isinstance(digest, str):
            raise EngineProtocolError(f"no per_engine_checksum in {answer!r:.300}")
        return digest

    async def release_memory(self, tags: Sequence[str] = ("kv_cache",)) -> None:
        """Give memory back. The engine must be idle (a busy SGLang dies of it)."""
        if await self.num_requests():
            raise EngineRefusedError("/release_memory_occupation", 400, "the engine is busy")
        await self._post("/release_memory_occupation", {"tags": list(tags)}, UPDATE_TIMEOUT_S)

    async def resume_memory(self, tags: Sequence[str] = ("kv_cache",)) -> None:
        """Take it again."""
        await self._post("/resume_memory_occupation", {"tags": list(tags)}, UPDATE_TIMEOUT_S)

    async def model_info(self) -> dict[str, Any]:
        """`model_path`, `weight_version`, ..."""
        return _object(await self._get("/model_info"))

    async def weight_version(self) -> str:
        """Version of the weights in service."""
        return str((await self.model_info())["weight_version"])

    async def loads(self) -> dict[str, Any]:
        """The load entry of the engine's only data-parallel rank."""
        answer = _object(await self._get("/v1/loads"))
        try:
            return dict(answer["loads"][0])
        except (KeyError, IndexError, TypeError) as error:
            raise EngineProtocolError(f"not a /v1/loads answer: {answer!r:.300}") from error

    async def num_requests(self) -> int:
        """Requests that run or wait in the engine."""
        load = await self.loads()
        return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])

    async def num_pins(self) -> int:
        """Cached prefixes that wait to be copied; 0 from an engine that cannot."""
        return int((await self.loads()).get("num_pins", 0))

    async def num_announced(self, switch: int) -> int | None:
        """Executions that the role switch moves away and that a proxy has spoken for; None from an
        engine that cannot pin."""
        told = (await self.loads()).get("announced")
        if told is None:
            return None
        return int(told["num_executions"]) if told["switch"] == switch else 0

    async def health(self) -> bool:
        """Whether the engine answers; False for any kind of silence. Slow while paused."""
        return await self._ok("/health")

    async def ready(self) -> bool:
        """Whether a request sent now would be served (not paused)."""
        return await self._ok("/ready")

    async def _ok(self, path: str) -> bool:
        try:
            await self._get(path)
        except EngineError:
            return False
        return True

    async def _get(self, path: str) -> httpx.Response:
        return await self._send("GET", path, None, CONTROL_TIMEOUT_S)

    async def _post(
        self, path: str, body: Mapping[str, Any] | None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> httpx.Response:
        return await self._send("POST", path, body, timeout_s)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = await self._http.request(method, path, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"{path}: no answer within {timeout_s} s") from error
        except httpx.TransportError as error:
            raise EngineUnreachableError(f"{self.base_url}{path}: {error!r}") from error
        if response.status_code >= 400:
            raise _refused(path, response)
        return response


def _generate_body(
    input_ids: Sequence[int],
    sampling_params: Mapping[str, Any],
    rid: str,
    return_logprob: bool,
    extra_key: str | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": list(input_ids),
        "sampling_params": dict(sampling_params),
        "return_logprob": return_logprob,
    }
    if extra_key is not None:
        body["extra_key"] = extra_key
    return body


def _parse_event(data: bytes) -> Generation:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise EngineProtocolError(f"a stream event is not JSON: {data[:300]!r}") from error
    if "error" in event:
        failure = event["error"]
        raise EngineRefusedError("/generate", failure.get("code", 400), failure["message"])
    return parse_generation(event)


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise EngineProtocolError(f"not JSON: {response.text:.300}") from error
    if not isinstance(value, dict):
        raise EngineProtocolError(f"not a JSON object: {response.text:.300}")
    return value


def _refused(path: str, response: httpx.Response) -> EngineRefusedError:
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
