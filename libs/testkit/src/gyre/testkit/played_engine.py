"""An engine that plays a script to whatever calls it, in SGLang's streaming shape.

A scene is chosen by what the prompt says since the turn before, so the engine holds no state that
a call depends on: several engines play one script, and each goes on where another was cut off. So
an agent program that nobody may change can be led through a task, whichever engine serves it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gyre.core.routing import weight_version_name
from gyre.proxy.tokenizer import FastTokenizer
from gyre.testkit.tiny_model import QWEN3_SPECIAL_TOKENS

END = "<|im_end|>"
_OPENING = "<|im_start|>assistant\n"
_TOKENS_PER_EVENT = 16
_VOCABULARY = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One turn. cue: the scene is played when its cue is the last one that stands between the turn
    before and the end of the prompt. says: the turn's text, its end is added. holds_after: so many
    tokens are streamed, then the engine waits until the attempt is cut off; only once."""

    cue: str
    says: str
    holds_after: int | None = None


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as a Qwen3 model says it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def raw_tool_call(text: str) -> str:
    """As `tool_call`, with the very text of its JSON."""
    return f"<tool_call>\n{text}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one request was due. whole: the turn's tokens. kept: how many it brought along."""

    cue: str
    whole: tuple[int, ...]
    kept: int
    port: int


@dataclass(slots=True)
class Play:
    """A script and what became of it. Mutated by the engines that play it.

    surprises: ends of prompts that had no cue. held: set when a scene stands still.
    """

    tokenizer: FastTokenizer
    scenes: tuple[Scene, ...]
    played: list[Played] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    _has_held: set[str] = field(default_factory=set)

    def turn(self, prompt: Sequence[int]) -> tuple[Scene, list[int], int] | None:
        """The scene for a prompt, its tokens, and how many of them the prompt has already."""
        ids = list(prompt)
        opening = self.tokenizer.encode(_OPENING)
        start = _rfind(ids, opening, len(ids))
        since = self._tail(ids, start, opening)
        places = [(since.rfind(scene.cue), scene) for scene in self.scenes]
        at, scene = max(places, key=lambda place: place[0])
        if at < 0:
            self.surprises.append(since[-2000:])
            return None
        tokens = self.tokenizer.encode(scene.says + END)
        kept = ids[start + len(opening) :]
        if kept != tokens[: len(kept)]:
            self.surprises.append(f"{scene.cue}: the prompt brings other tokens along")
            return None
        return scene, tokens, len(kept)

    def holds(self, scene: Scene) -> bool:
        """Whether the scene stands still here: the first time it is played."""
        if scene.holds_after is None or scene.cue in self._has_held:
            return False
        self._has_held.add(scene.cue)
        return True

    def unplayed(self) -> list[str]:
        """Cues that never came."""
        came = {each.cue for each in self.played}
        return [scene.cue for scene in self.scenes if scene.cue not in came]

    def _tail(self, ids: list[int], start: int, opening: list[int]) -> str:
        before = _rfind(ids, opening, start)
        if before < 0:
            return self.tokenizer.decode(ids[:start])
        end = self.tokenizer.convert_tokens_to_ids(END)
        closed = ids.index(end, before, start) if end in ids[before:start] else before
        return self.tokenizer.decode(ids[closed + 1 : start])


@dataclass(slots=True)
class PlayedEngine:
    """One engine on a port of its own. `kill` drops its connections and its port."""

    play: Play
    url: str = ""
    port: int = 0
    _runner: web.AppRunner | None = None
    _aborts: dict[str, asyncio.Event] = field(default_factory=dict)
    _requests: dict[str, web.Request] = field(default_factory=dict)

    async def start(self) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def kill(self) -> None:
        """What a process killed with SIGKILL looks like from outside."""
        for request in list(self._requests.values()):
            if request.transport is not None:
                request.transport.abort()
        for aborted in self._aborts.values():
            aborted.set()  # the handlers find their connections gone
        await self.stop()

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _abort(self, request: web.Request) -> web.Response:
        rid = orjson.loads(await request.read()).get("rid")
        if rid in self._aborts:
            self._aborts[rid].set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        found = self.play.turn(body["input_ids"])
        if found is None:
            return web.json_response({"error": {"message": "no scene for this"}}, status=400)
        scene, tokens, kept = found
        tokens = tokens[: kept + body["sampling_params"]["max_new_tokens"]]
        rest = tokens[kept:]
        self.play.played.append(
            Played(cue=scene.cue, whole=tuple(tokens), kept=kept, port=self.port)
        )
        rid = body["rid"]
        aborted = self._aborts[rid] = asyncio.Event()
        self._requests[rid] = request
        try:
            return await self._stream(request, body, scene, rest, aborted)
        finally:
            del self._requests[rid], self._aborts[rid]

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        scene: Scene,
        ids: list[int],
        aborted: asyncio.Event,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.play.holds(scene):
            held = scene.holds_after or 0
            await response.write(_event(body, ids[:held], None))
            self.play.held.set()
            await aborted.wait()
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the engine was killed")
            await response.write(_event(body, ids[:held], {"type": "abort"}))
        else:
            for count in range(_TOKENS_PER_EVENT, len(ids), _TOKENS_PER_EVENT):
                await response.write(_event(body, ids[:count], None))
            stopped = ids[-1] in body["sampling_params"]["stop_token_ids"]
            length = {"type": "length", "length": len(ids)}
            finish = {"type": "stop", "matched": ids[-1]} if stopped else length
            await response.write(_event(body, ids, finish))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def make_script_model(directory: Path, texts: Sequence[str]) -> Path:
    """A model's directory with a tokenizer and no weights: what the proxy needs. It is trained on
    `texts`, so that prompts of their language have about four characters a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(QWEN3_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@asynccontextmanager
async def played_engines(
    model: Path, scenes: Sequence[Scene], *, count: int = 1
) -> AsyncIterator[tuple[Play, tuple[PlayedEngine, ...]]]:
    """`count` engines that play `scenes` together, while the block lasts."""
    play = Play(FastTokenizer(model), tuple(scenes))
    engines = tuple(PlayedEngine(play) for _ in range(count))
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        yield play, engines


def _event(body: dict[str, Any], ids: Sequence[int], finish: dict[str, Any] | None) -> bytes:
    meta: dict[str, Any] = {
        "id": body["rid"],
        "weight_version": weight_version_name(0, 0),
        "cached_tokens": 0,
        "finish_reason": finish,
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    if finish is not None:
        span = {"version": meta["weight_version"], "start": 0, "end": len(ids)}
        meta["weight_versions"] = [span]
    return (
        b"data: " + orjson.dumps({"text": "", "output_ids": list(ids), "meta_info": meta}) + b"\n\n"
    )


def _rfind(ids: Sequence[int], part: Sequence[int], before: int) -> int:
    """Where `part` stands last in `ids[:before]`; below 0 if nowhere."""
    for start in range(before - len(part), -1, -1):
        if ids[start] == part[0] and list(ids[start : start + len(part)]) == list(part):
            return start
    return -1
