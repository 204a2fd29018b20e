"""An engine that plays a script instead of sampling, over the HTTP contract that the proxy uses.

What it plays, and how it knows what is next: `harness_script`. It serves in this process, or as a
process of its own:

    python -m gyre.testkit.played_engine PLAY PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gyre.core.routing import weight_version_name
from gyre.testkit.harness_script import Play, Scene

_TOKENS_PER_EVENT = 16


@dataclass(slots=True)
class _Attempt:
    """One request that is being played. aborted: it shall end with what it has. told: it stands
    still no more."""

    aborted: bool = False
    told: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class PlayedEngine:
    """One engine on a port of its own. version: of its weights."""

    play: Play
    port: int = 0
    url: str = ""
    version: str = weight_version_name(0, 0)
    _runner: web.AppRunner | None = None
    _attempts: dict[str, _Attempt] = field(default_factory=dict)

    async def start(self) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/continue_generation", self._continue)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _abort(self, request: web.Request) -> web.Response:
        attempt = self._attempts.get(orjson.loads(await request.read()).get("rid"))
        if attempt is not None:
            attempt.aborted = True
            attempt.told.set()
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        """A scene that stands still is as good as paused."""
        return web.Response()

    async def _update(self, request: web.Request) -> web.Response:
        self.version = orjson.loads(await request.read())["weight_version"]
        return web.json_response({"success": True, "message": ""})

    async def _continue(self, request: web.Request) -> web.Response:
        for attempt in self._attempts.values():
            attempt.told.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        asked = body["sampling_params"]
        turn = self.play.turn(body["input_ids"], self.url, asked["max_new_tokens"])
        if turn is None:
            return web.json_response({"error": {"message": "no scene for this"}}, status=400)
        attempt = self._attempts[body["rid"]] = _Attempt()
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            stream = _Stream(response, body["rid"], turn.tokens[turn.kept :])
            await self._play(stream, turn.scene, attempt, asked["stop_token_ids"])
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            del self._attempts[body["rid"]]
        return response

    async def _play(
        self, stream: _Stream, scene: Scene, attempt: _Attempt, stops: Sequence[int]
    ) -> None:
        if self.play.holds(scene):
            await stream.show(scene.holds_after or 0, self.version)
            self.play.stands_still(scene)
            await attempt.told.wait()
            if attempt.aborted:
                await stream.end({"type": "abort"})
                return
        num = len(stream.ids)
        for count in range(stream.shown + _TOKENS_PER_EVENT, num, _TOKENS_PER_EVENT):
            await stream.show(count, self.version)
        await stream.show(num, self.version)
        last = stream.ids[-1]
        stopped = {"type": "stop", "matched": last}
        await stream.end(stopped if last in stops else {"type": "length", "length": num})


class _Stream:
    """Events of one request, each with all of its tokens so far. ids: all that it is due."""

    def __init__(self, response: web.StreamResponse, rid: str, ids: Sequence[int]) -> None:
        self.ids = ids
        self.shown = 0
        self._response = response
        self._rid = rid
        self._spans: list[dict[str, Any]] = []

    async def show(self, count: int, version: str) -> None:
        """The first `count` tokens; what is new of them was sampled under `version`."""
        if self._spans and self._spans[-1]["version"] == version:
            self._spans[-1]["end"] = count
        else:
            self._spans.append({"version": version, "start": self.shown, "end": count})
        self.shown = count
        await self._write(None)

    async def end(self, finish: dict[str, Any]) -> None:
        await self._write(finish)

    async def _write(self, finish: dict[str, Any] | None) -> None:
        ids = list(self.ids[: self.shown])
        meta: dict[str, Any] = {
            "id": self._rid,
            "weight_version": self._spans[-1]["version"],
            "cached_tokens": 0,
            "finish_reason": finish,
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        }
        if finish is not None:
            meta["weight_versions"] = self._spans
        event = {"text": "", "output_ids": ids, "meta_info": meta}
        await self._response.write(b"data: " + orjson.dumps(event) + b"\n\n")


async def _main(directory: Path, port: int) -> None:
    await PlayedEngine(Play.load(directory), port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
