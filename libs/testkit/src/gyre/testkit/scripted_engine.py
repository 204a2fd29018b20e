"""An engine that says what it is told, in SGLang's streaming shape: for what a random model never
says, such as tool calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gyre.core.routing import weight_version_name
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.testkit.served_app import served


@dataclass(slots=True)
class ScriptedEngine:
    """Answers each `/generate` with the next text of `script` (without a close: it was cut).

    requests: the bodies it got. Mutated by requests only.
    """

    tokenizer: FastTokenizer
    script: list[str]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        text = self.script[len(self.requests)]
        self.requests.append(body)
        ids = self.tokenizer.encode(text)[: body["sampling_params"]["max_new_tokens"]]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for count in range(1, len(ids) + 1):
            await response.write(b"data: " + orjson.dumps(_event(body, ids, count)) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _event(body: dict[str, Any], ids: Sequence[int], count: int) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": body["rid"],
        "weight_version": weight_version_name(0, 0),
        "cached_tokens": 0,
        "finish_reason": None,
        "output_token_logprobs": [[-0.5, token, None] for token in ids[:count]],
    }
    if count == len(ids):
        stopped = ids[-1] in body["sampling_params"]["stop_token_ids"]
        stop = {"type": "stop", "matched": ids[-1]}
        meta["finish_reason"] = stop if stopped else {"type": "length", "length": count}
        meta["weight_versions"] = [{"version": meta["weight_version"], "start": 0, "end": count}]
    return {"text": "", "output_ids": ids[:count], "meta_info": meta}


@asynccontextmanager
async def scripted_engine(model: Path, *script: str) -> AsyncIterator[ScriptedEngine]:
    """Serves `script` on a free port while the block lasts."""
    engine = ScriptedEngine(FastTokenizer(model), list(script))
    app = web.Application()
    app.router.add_post("/generate", engine.generate)
    async with served(web.AppRunner(app, access_log=None)) as engine.url:
        yield engine
