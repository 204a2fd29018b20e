"""`POST /generate`, streaming and not."""

from __future__ import annotations

import orjson
from aiohttp import web

from gyre.cell_agent.engine.local.engine import Live, LocalEngine
from gyre.cell_agent.engine.local.errors import (
    LocalEngineError,
    SchemaError,
    UnavailableError,
    UnknownParameterError,
)
from gyre.cell_agent.engine.local.http import ENGINE, json_response, read_body, stream_error
from gyre.cell_agent.engine.local.params import GenerateInput, parse_generate
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.responses import build_response

DONE = b"data: [DONE]\n\n"


async def generate(request: web.Request) -> web.StreamResponse:
    """Body and answer as in SGLang's native API; see `params` for what is refused."""
    engine = request.app[ENGINE]
    body = await read_body(request)
    if body.get("stream") is True:
        return await _stream(request, engine, body)
    asked = parse_generate(body, engine.config.shapes.vocab_size)
    async with engine.generating(asked) as live:
        done = await _finished(engine, live)
    return json_response(build_response(done, engine.codec, engine.weight_version))


async def _stream(
    request: web.Request, engine: LocalEngine, body: dict[str, object]
) -> web.StreamResponse:
    """Server-sent events. A body of the wrong shape is still a plain 400; a value that is
    refused arrives inside the stream, with status 200, as SGLang has it."""
    refused: LocalEngineError | None = None
    try:
        asked = parse_generate(body, engine.config.shapes.vocab_size)
    except (SchemaError, UnknownParameterError):
        raise
    except LocalEngineError as error:
        refused = error
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    if refused is None:
        try:
            await _write_events(response, engine, asked)
        except LocalEngineError as error:
            refused = error
    if refused is not None:
        await response.write(b"data: " + stream_error(refused) + b"\n\n")
    await response.write(DONE)
    await response.write_eof()
    return response


async def _write_events(
    response: web.StreamResponse, engine: LocalEngine, asked: GenerateInput
) -> None:
    """One event for each step that brought tokens; steps that pile up become one event."""
    incremental = engine.options.incremental_streaming_output
    sent = 0
    async with engine.generating(asked) as live:
        finished = False
        while not finished:
            current = await _news(engine, live)
            finished = current.finish is not None
            event = build_response(
                current,
                engine.codec,
                engine.weight_version,
                from_token=sent if incremental else 0,
            )
            sent = event["meta_info"]["completion_tokens"]
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")


async def _finished(engine: LocalEngine, live: Live) -> Request:
    """Wait until the request has ended."""
    while True:
        request = await _news(engine, live)
        if request.finish is not None:
            return request


async def _news(engine: LocalEngine, live: Live) -> Request:
    """Wait for the next progress; raises UnavailableError when the model thread is gone."""
    await live.progress.wait()
    live.progress.clear()
    if engine.failure is not None:
        raise UnavailableError(f"the engine failed: {engine.failure}")
    assert live.request is not None
    return live.request
