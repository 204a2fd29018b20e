"""The port to an inference engine that speaks SGLang's native HTTP API.

`EngineClient` is what the cell agent drives an engine with, whichever program it is. It keeps
to the part of the API that both engines share (see README.md), turns every failure into one of
the errors below, and sends nothing that is known to kill a server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

import httpx

from gyre.cell_agent.engine.connection import (
    CONNECT_TIMEOUT_S,
    CONTROL_TIMEOUT_S,
    json_object,
    refusal,
)
from gyre.cell_agent.engine.errors import (
    BadWeightsError,
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
    WeightsDiffer,
)
from gyre.cell_agent.engine.events import event_texts
from gyre.cell_agent.engine.generation import Generation, VersionSpan, parse_generation
from gyre.cell_agent.engine.weight_calls import UPDATE_TIMEOUT_S, WeightCalls

__all__ = [
    "BadWeightsError",
    "EngineClient",
    "EngineError",
    "EngineProtocolError",
    "EngineRefusedError",
    "EngineTimeoutError",
    "EngineUnreachableError",
    "Generation",
    "PauseMode",
    "VersionSpan",
    "WeightsDiffer",
    "parse_generation",
]

PauseMode = Literal["abort", "in_place", "retract"]

GENERATE_TIMEOUT_S = 600.0
KV_CACHE = "kv_cache"


class EngineClient(WeightCalls):
    """Calls of one engine at `base_url`. Use as an async context manager, or call `aclose`."""

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
        return parse_generation(json_object(await self.post("/generate", body, timeout_s)))

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
            async with self.http.stream(
                "POST", "/generate", json=body, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise refusal("/generate", response)
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
        await self.post("/abort_request", body)

    async def pause(self, mode: PauseMode) -> None:
        """Hold the engine; `retract` keeps running requests and lets the cache be flushed."""
        await self.post("/pause_generation", {"mode": mode}, UPDATE_TIMEOUT_S)

    async def pause_after_running(self, timeout_s: float = UPDATE_TIMEOUT_S) -> None:
        """Hold the engine once what runs has ended; what comes meanwhile waits. The few that come
        between the last one's end and the hold are retracted. Raises EngineTimeoutError.

        To begin an update is the one call that waits for what runs and changes nothing.
        """
        await self.post("/begin_weight_update", {}, timeout_s)
        await self.pause("retract")
        await self.post("/end_weight_update", {})

    async def resume(self) -> None:
        """Undo a pause."""
        await self.post("/continue_generation", {})

    async def flush_cache(self, wait_s: float = 0.0) -> None:
        """Drop cached prefixes; refused while requests run longer than `wait_s`."""
        await self.post(f"/flush_cache?timeout={wait_s}", None, CONTROL_TIMEOUT_S + wait_s)

    async def release_memory(self, tags: Sequence[str] = (KV_CACHE,)) -> None:
        """Give memory back. The engine must be paused, so that nothing comes in meanwhile, and hold
        no running request: what waits behind the pause may stay. Raises EngineRefusedError.

        A busy SGLang dies of it. What it says of its load may be a step old; its flush asks just
        what a release asks, and does no harm when the answer is no.
        """
        path = "/release_memory_occupation"
        await self.require_paused(path)
        try:
            await self.flush_cache()
        except EngineRefusedError as error:
            raise EngineRefusedError(path, 400, "the engine is busy") from error
        await self.post(path, {"tags": list(tags)}, UPDATE_TIMEOUT_S)
        self.released |= frozenset(tags)

    async def resume_memory(self, tags: Sequence[str] = (KV_CACHE,)) -> None:
        """Take it again: of `tags`, what this client released. SGLang dies of any other."""
        taken = [tag for tag in tags if tag in self.released]
        if not taken:
            return
        await self.post("/resume_memory_occupation", {"tags": taken}, UPDATE_TIMEOUT_S)
        self.released -= frozenset(taken)

    async def loads(self) -> dict[str, Any]:
        """The load entry of the engine's only data-parallel rank."""
        answer = json_object(await self.get("/v1/loads"))
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
        return await self.ok("/health")


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
