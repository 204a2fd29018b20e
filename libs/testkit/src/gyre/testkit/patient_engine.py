"""An engine that ends a turn when the test says so, in SGLang's streaming shape: for what happens
while a call is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gyre.core.routing import weight_version_name
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.testkit.served_app import served

_END = "<|im_end|>"


@dataclass(slots=True)
class PatientEngine:
    """Says `says`, or `answer N` in its Nth turn: all but the end at once, the end when `go` is
    set. An abort ends a turn where it is once `stops` is set. asked: turns that began. Mutated by
    requests."""

    tokenizer: FastTokenizer
    url: str = ""
    says: str = ""
    asked: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    stops: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Condition = field(default_factory=asyncio.Condition)
    aborts: dict[str, asyncio.Event] = field(default_factory=dict)

    async def until_asked(self, times: int) -> None:
        """Returns when that many turns have begun."""
        async with self.begun:
            await self.begun.wait_for(lambda: self.asked >= times)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        async with self.begun:
            self.asked += 1
            ids = self.tokenizer.encode((self.says or f"answer {self.asked}") + _END)
            self.begun.notify_all()
        aborted = self.aborts[body["rid"]] = asyncio.Event()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event(body, ids[:-1], None))
        waits = [asyncio.create_task(event.wait()) for event in (self.go, aborted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            whole = self.go.is_set()
            last = _event(body, ids, "stop") if whole else _event(body, ids[:-1], "abort")
            await response.write(last + b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            for wait in waits:
                wait.cancel()
        return response

    async def abort(self, request: web.Request) -> web.Response:
        rid = orjson.loads(await request.read())["rid"]
        await self.stops.wait()
        self.aborts[rid].set()
        return web.Response()


def _event(body: dict[str, Any], ids: list[int], finish: str | None) -> bytes:
    version = weight_version_name(0, 0)
    meta: dict[str, Any] = {
        "id": body["rid"],
        "weight_version": version,
        "cached_tokens": 0,
        "finish_reason": None if finish is None else {"type": finish},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    if finish is not None:
        meta["weight_versions"] = [{"version": version, "start": 0, "end": len(ids)}]
    return b"data: " + orjson.dumps({"text": "", "output_ids": ids, "meta_info": meta}) + b"\n\n"


@asynccontextmanager
async def patient_engine(model: Path) -> AsyncIterator[PatientEngine]:
    """Serves on a free port while the block lasts; aborts take effect at once unless told else."""
    engine = PatientEngine(FastTokenizer(model))
    engine.stops.set()
    app = web.Application()
    app.router.add_post("/generate", engine.generate)
    app.router.add_post("/abort_request", engine.abort)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    async with served(runner) as engine.url:
        yield engine
