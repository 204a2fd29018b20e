"""An engine that samples nothing: `python -m gyre.testkit.stub_engine --port P --model DIR`.

Tokens come on a timer, the same ones each time, so that what is measured before it is not the fight
for processors. SGLang's stream (`/generate`) and vLLM's whole answer (`/inference/v1/generate`,
what the peer of the proxy's benchmark asks for) say the same tokens in the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop
from aiohttp import web
from tokenizers import Tokenizer

VERSION = "0.0"
LOGPROB = -1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StubEngine:
    """ids: what it answers. token_s: between two of them."""

    ids: Sequence[int]
    token_s: float

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/generate", self._stream)
        app.router.add_post("/inference/v1/generate", self._whole)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        return app

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        start = _now()
        for count in range(1, len(self.ids) + 1):
            await asyncio.sleep(max(0.0, start + count * self.token_s - _now()))
            await response.write(b"data: " + orjson.dumps(self._event(count)) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _event(self, count: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": "0" * 32,
            "weight_version": VERSION,
            "cached_tokens": 0,
            "finish_reason": None,
            "output_token_logprobs": [[LOGPROB, token, None] for token in self.ids[:count]],
        }
        if count == len(self.ids):
            meta["finish_reason"] = {"type": "stop", "matched": self.ids[-1]}
            meta["weight_versions"] = [{"version": VERSION, "start": 0, "end": count}]
        return {"text": "", "output_ids": list(self.ids[:count]), "meta_info": meta}

    async def _whole(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(len(self.ids) * self.token_s)
        logprobs = [{"token": f"token_id:{token}", "logprob": LOGPROB} for token in self.ids]
        choice = {
            "index": 0,
            "token_ids": list(self.ids),
            "logprobs": {"content": logprobs},
            "finish_reason": "stop",
        }
        body = {"request_id": secrets.token_hex(8), "choices": [choice]}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 2**20}]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")


def _now() -> float:
    return asyncio.get_running_loop().time()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, help="directory with a tokenizer.json")
    parser.add_argument("--say", required=True, help="the answer, closed by <|im_end|>")
    parser.add_argument("--token-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(f"{arguments.model}/tokenizer.json")
    ids = tokenizer.encode(f"{arguments.say}<|im_end|>", add_special_tokens=False).ids
    engine = StubEngine(ids=ids, token_s=arguments.token_ms / 1e3)
    web.run_app(
        engine.application(),
        port=arguments.port,
        host="127.0.0.1",
        print=None,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
