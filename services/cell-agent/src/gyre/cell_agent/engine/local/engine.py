"""The engine behind its HTTP routes: live requests, admission, weight updates.

Lives in the event loop; everything that touches the model goes through the model thread.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gyre.cell_agent.engine.local.config import ModelConfig
from gyre.cell_agent.engine.local.errors import BadRequestError
from gyre.cell_agent.engine.local.gate import Gate
from gyre.cell_agent.engine.local.options import EngineOptions
from gyre.cell_agent.engine.local.params import GenerateInput
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.thread import EngineThread
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.update_group import UpdateGroup

MAX_PULLS = 4
"""Copies from other engines at a time: each holds one block in memory."""


@dataclass(slots=True, eq=False)
class Live:
    """A request between its arrival and its answer; `progress` is set at each news."""

    progress: asyncio.Event = field(default_factory=asyncio.Event)
    request: Request | None = None


class LocalEngine:
    """State shared by the routes. `model_path` follows weight updates, as in SGLang."""

    def __init__(
        self,
        *,
        options: EngineOptions,
        config: ModelConfig,
        codec: TextCodec,
        scheduler: Scheduler,
    ) -> None:
        self.options = options
        self.config = config
        self.codec = codec
        self.scheduler = scheduler
        self.gate = Gate()
        self.pulls = asyncio.Semaphore(MAX_PULLS)
        self.model_path = str(options.model_path)
        self.update_session_open = False
        self.groups: dict[str, UpdateGroup] = {}
        self.failure: BaseException | None = None
        self.stopped = asyncio.Event()
        self.live: dict[str, Live] = {}
        self._waiters: dict[int, Live] = {}
        self.thread = EngineThread(
            scheduler,
            loop=asyncio.get_running_loop(),
            progress=self._note_progress,
            failed=self._fail,
        )

    @property
    def healthy(self) -> bool:
        """Whether the model thread is there to serve."""
        return self.failure is None and self.thread.alive

    @property
    def weight_version(self) -> str:
        """Version of the weights in service."""
        return self.scheduler.weight_version

    def prepare(self, asked: GenerateInput) -> tuple[str, list[int], int]:
        """Check a request against the engine: (rid, prompt ids, max new tokens).

        Raises BadRequestError: empty or too long prompts, a duplicate rid.
        """
        prompt = self.codec.encode(asked.text) if asked.text is not None else None
        ids = prompt if prompt is not None else list(asked.input_ids or ())
        if not ids:
            raise BadRequestError("input_ids cannot be empty.")
        limit = self.options.context_length
        if len(ids) >= limit:
            raise BadRequestError(
                f"The input ({len(ids)} tokens) is longer than the "
                f"model's context length ({limit} tokens)."
            )
        return self._unused_rid(asked.rid), ids, self._max_new_tokens(asked, len(ids))

    @asynccontextmanager
    async def generating(self, asked: GenerateInput) -> AsyncIterator[Live]:
        """Run a request; on leaving early (client gone, handler cancelled) it is aborted."""
        rid, prompt, max_new_tokens = self.prepare(asked)
        live = self.live[rid] = Live()
        created_at = time.perf_counter()
        try:
            async with self.gate.request():
                request = live.request = Request(
                    rid=rid,
                    prompt=prompt,
                    asked=asked,
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=asked.sampling.stop_token_ids
                    | self.config.eos_token_ids
                    | self.codec.eos_token_ids,
                    created_at=created_at,
                )
                self._waiters[id(request)] = live
                try:
                    await self.thread.call(lambda scheduler: scheduler.submit(request))
                    yield live
                finally:
                    del self._waiters[id(request)]
                    if request.finish is None:
                        self.thread.post(lambda scheduler: scheduler.withdraw(request))
        finally:
            del self.live[rid]

    async def abort(
        self, rid: str, *, all_requests: bool = False, pin_s: float | None = None
    ) -> None:
        """Abort as SGLang does: an unknown rid is ignored; a known one matches by prefix. pin_s:
        how long what the aborted requests have in the cache stays pinned for a copy."""
        if all_requests or rid in self.live:
            await self.thread.call(
                lambda scheduler: scheduler.abort(rid, all_requests=all_requests, pin_s=pin_s)
            )

    async def pause(self, mode: str) -> None:
        """`abort` ends all requests; `in_place` and `retract` hold them."""
        self.gate.set_paused(True)
        if mode == "abort":
            await self.abort("", all_requests=True)
            await self.gate.empty()
        else:
            await self.thread.call(lambda scheduler: scheduler.pause(retract=mode == "retract"))

    async def resume(self) -> None:
        """Undo a pause."""
        await self.thread.call(lambda scheduler: scheduler.resume())
        self.gate.set_paused(False)

    def _unused_rid(self, rid: str | None) -> str:
        if rid is None:
            return uuid.uuid4().hex
        if rid in self.live:
            raise BadRequestError(f"Duplicate request ID detected: {rid}")
        return rid

    def _max_new_tokens(self, asked: GenerateInput, num_prompt: int) -> int:
        limit = self.options.context_length
        wanted = asked.sampling.max_new_tokens
        if wanted is None:
            return limit - num_prompt
        if asked.max_new_tokens_given and num_prompt + wanted > limit:
            raise BadRequestError(
                "Requested token count exceeds the model's maximum context length of "
                f"{limit} tokens. You requested a total of {num_prompt + wanted} tokens: "
                f"{num_prompt} tokens from the input messages and {wanted} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit."
            )
        return min(wanted, limit - num_prompt)

    def _note_progress(self, requests: list[Request]) -> None:
        for request in requests:
            live = self._waiters.get(id(request))
            if live is not None:
                live.progress.set()

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.stopped.set()
        for live in self._waiters.values():
            live.progress.set()
