"""Copying a pinned prefix to another engine: copy, confirm, release.

A running request's pin is made by `/abort_request`, in one step with the cancellation; that of one
that has ended by `/pin_cache`, after `/announce_pins`. Who may call these routes has the job's
migration key as a bearer token. An engine that was given none answers 404, as SGLang
does: its caller falls back to prefilling again.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web
from torch import Tensor

from gyre.cell_agent.engine.local.blocks import (
    Header,
    block_bounds,
    encode_block,
    kv_shape,
    tokens_digest,
)
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import (
    BadRequestError,
    GoneError,
    SchemaError,
    UnauthorizedError,
)
from gyre.cell_agent.engine.local.http import ENGINE, field, json_response, read_body, read_seconds
from gyre.cell_agent.engine.local.pulling import HEADER, NAMESPACE, Wanted, pull
from gyre.cell_agent.engine.local.scheduler import Scheduler


async def announce_pins(request: web.Request) -> web.Response:
    """`{switch, num_executions, rids, pin_s}`: always 200. `/v1/loads` counts what is announced."""
    engine, _ = _authorized(request)
    body = await read_body(request)
    switch, num = field(body, "switch", int), field(body, "num_executions", int)
    rids = field(body, "rids", list)
    if not all(isinstance(rid, str) for rid in rids):
        raise SchemaError("rids must be a list of strings")
    deadline = time.perf_counter() + read_seconds(body, "pin_s")
    await engine.thread.call(lambda scheduler: scheduler.pins.announce(switch, num, rids, deadline))
    return json_response({})


async def pin_cache(request: web.Request) -> web.Response:
    """`{rid, input_ids, pin_s}`: pin what is cached of them; `pinned_tokens` says how many are."""
    engine, _ = _authorized(request)
    body = await read_body(request)
    rid, tokens = field(body, "rid", str), _read_tokens(body, engine)
    deadline = time.perf_counter() + read_seconds(body, "pin_s")

    def pin(scheduler: Scheduler) -> int:
        namespace = (*NAMESPACE, scheduler.runner.weights)
        return scheduler.pins.hold(rid, namespace, tokens, deadline)

    return json_response({"pinned_tokens": await engine.thread.call(pin)})


async def unpin_cache(request: web.Request) -> web.Response:
    """`{rid}`: always 200."""
    engine, _ = _authorized(request)
    rid = field(await read_body(request), "rid", str)
    await engine.thread.call(lambda scheduler: scheduler.pins.release(rid))
    return json_response({})


async def cache_blocks(request: web.Request) -> web.StreamResponse:
    """`{rid, start, end}`: KV of the pinned tokens [start, end) or as many as are pinned, in the
    form of `blocks`. The stream breaks off when the pin ends before it."""
    engine, _ = _authorized(request)
    body = await read_body(request)
    rid = field(body, "rid", str)
    start, end = field(body, "start", int), field(body, "end", int)
    pin = await engine.thread.call(lambda scheduler: scheduler.pins.find(rid))
    if not 0 <= start <= end:
        raise BadRequestError(f"start {start} and end {end} are no range")
    end = max(start, min(end, len(pin.tokens)))
    response = web.StreamResponse(
        headers={
            HEADER: Header(
                version=engine.weight_version,
                shape=kv_shape(engine.config.shapes),
                start=start,
                end=end,
                tokens=tokens_digest(pin.tokens[:end]),
            ).to_json()
        }
    )
    await response.prepare(request)
    try:
        async with asyncio.timeout(pin.deadline - time.perf_counter()):
            await _write_blocks(response, engine, rid, start, end)
            await response.write_eof()
    except (TimeoutError, GoneError):
        # The status is out: only a broken connection can say that what follows is missing.
        if request.transport is not None:
            request.transport.abort()
    return response


async def pull_cache(request: web.Request) -> web.Response:
    """`{source, rid, input_ids, deadline_s}`: copy what the engine at `source` has pinned for
    `rid`, whose context and output are `input_ids`. `success` is false when not all of it came."""
    engine, key = _authorized(request)
    body = await read_body(request)
    tokens = _read_tokens(body, engine)
    source = field(body, "source", str)
    if not source.startswith(("http://", "https://")):
        raise BadRequestError("source must be the url of an engine")
    wanted = Wanted(
        source=source.rstrip("/"),
        rid=field(body, "rid", str),
        tokens=tokens,
        deadline_s=read_seconds(body, "deadline_s"),
    )
    pulled = await pull(engine, wanted, key)
    return json_response({"success": pulled.error is None, **asdict(pulled)})


def _read_tokens(body: dict[str, Any], engine: LocalEngine) -> list[int]:
    """`input_ids`. Raises SchemaError, BadRequestError."""
    tokens: list[int] = field(body, "input_ids", list)
    if not tokens or not all(type(token) is int for token in tokens):
        raise SchemaError("input_ids must be a list of token ids")
    if not all(0 <= token < engine.config.shapes.vocab_size for token in tokens):
        raise BadRequestError("a token id is outside the vocabulary")
    return tokens


async def _write_blocks(
    response: web.StreamResponse, engine: LocalEngine, rid: str, start: int, end: int
) -> None:
    for first, last in block_bounds(start, end):
        rows = await engine.thread.call(_reading(rid, first, last))
        await response.write(encode_block(rows))


def _reading(rid: str, start: int, end: int) -> Callable[[Scheduler], Tensor]:
    return lambda scheduler: scheduler.pins.read(rid, start, end)


def _authorized(request: web.Request) -> tuple[LocalEngine, str]:
    """The engine and its migration key. Raises UnauthorizedError, HTTPNotFound without a key."""
    engine = request.app[ENGINE]
    key = engine.options.migration_key
    if key is None:
        raise web.HTTPNotFound
    given = request.headers.get("Authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {key}".encode()):
        raise UnauthorizedError("send the job's migration key as a bearer token")
    return engine, key
