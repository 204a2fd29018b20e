"""SGLang's scheduler refuses some requests in a stream of status 200: with an abort that has a
status of its own, and a token that it sampled from nothing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from gyre.proxy.sampling.streams import EngineRefused, Engines, SamplingOrder, engine_session
from gyre.testkit.served_app import served

ORDER = SamplingOrder(
    rid="0" * 32, execution="e", input_ids=[1, 2, 3], max_new_tokens=8, temperature=1.0, seed=7,
    stop_token_ids=[5],
)  # fmt: skip


async def streamed(finish: dict[str, Any]) -> tuple[Exception | None, tuple[int, ...]]:
    """What became of a stream with one token that ended like this: its error, its tokens."""
    meta = {"output_token_logprobs": [[-0.5, 79, None]], "finish_reason": finish}
    event = orjson.dumps({"output_ids": [79], "meta_info": meta | {"weight_version": "0.0"}})

    async def generate(request: web.Request) -> web.Response:
        return web.Response(body=b"data: " + event + b"\n\ndata: [DONE]\n\n")

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with served(web.AppRunner(app)) as url, engine_session() as session:
        stream = Engines(session).stream(url, (0, 0))
        try:
            await stream.run(ORDER)
        except EngineRefused as error:
            return error, stream.sample().token_ids
        return None, stream.sample().token_ids


async def test_an_abort_with_a_clients_status_is_a_refusal_and_has_no_tokens() -> None:
    error, tokens = await streamed({"type": "abort", "message": "too long", "status_code": 400})
    assert str(error).endswith("too long")
    assert tokens == ()


@pytest.mark.parametrize("status", [None, 503])
async def test_any_other_abort_keeps_what_was_sampled(status: int | None) -> None:
    finish = {"type": "abort", "message": "Aborted", "status_code": status}
    assert await streamed(finish) == (None, (79,))
