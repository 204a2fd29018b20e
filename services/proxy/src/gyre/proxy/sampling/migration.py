"""Takes a call's cached prefix along to the engine where it goes on.

    pin + cancel   at the source, one step: its blocks cannot be evicted before they are copied;
                   of a call that has ended: announce, then pin by its tokens
    copy           the destination fetches from the source what it does not have yet
    confirm        the destination says how much of the prefix its cache now holds
    release        only then does the source drop the pin, and may leave

An engine that cannot do this (SGLang has no such routes) or a copy that fails costs the call
nothing but time: the destination prefills again. Each step has a deadline, and a pin that this
process never releases ends by itself at the source.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import aiohttp
import numpy as np
import orjson

from gyre.adapters.keys import make_migration_key
from gyre.adapters.logging import get_logger
from gyre.contracts.events.calls import CallRerouted
from gyre.core.routing import Engine

# Of a copy. A pinned prefix outlives it, so that a copy is not cut by its own pin; what takes
# longer than this is faster prefilled again.
COPY_S = 4.0
PIN_S = 5.0
# The source only drops a reference; it has just sent the blocks.
RELEASE_S = 0.5
# The source only notes it.
ANNOUNCE_S = 2.0

Reason = Literal["transition", "engine_lost", "publication"]


class MigrationRefused(Exception):
    """The engine did not do its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What an attempt that was cut may have left pinned at `engine`, under its rid."""

    engine: Engine
    rid: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """tokens: copied to the destination. num_cached: of the prefix, in its cache by its own word.
    seconds: from the request to the confirmation."""

    tokens: int = 0
    num_cached: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


NOTHING = Carried()


class Move(NamedTuple):
    """A call's going on elsewhere. kept: tokens that were sampled before it."""

    source: Engine
    destination: Engine
    reason: Reason
    kept: int
    carried: Carried

    def event(
        self, call: str, execution: str, num_prefilled: int | None, num_cached: int | None
    ) -> CallRerouted:
        """Tokens that the destination computed before it sampled, and that it had; None where it
        did not begin."""
        return CallRerouted(
            call=call,
            execution=execution,
            source=self.source.cell,
            destination=self.destination.cell,
            tokens_kept=self.kept,
            reason=self.reason,
            tokens_migrated=self.carried.tokens,
            tokens_prefilled_again=num_prefilled or 0,
            migration_s=self.carried.seconds,
            num_cached_tokens=num_cached,
        )


class Migration:
    """The engines' port for cached prefixes. Holds no state: keys are derived from the secret."""

    def __init__(self, session: aiohttp.ClientSession, key_secret: str) -> None:
        self._session = session
        self._key_secret = key_secret

    async def announce(
        self, source: Engine, job: str, switch: int, num_executions: int, rids: Sequence[str]
    ) -> bool:
        """Tells an engine whose cell leaves that these pins come, and for how many of the
        executions that this speaks. False if it did not take it."""
        body = {"switch": switch, "num_executions": num_executions, "rids": list(rids)}
        try:
            await self._ask(source.url, "/announce_pins", job, ANNOUNCE_S, body | {"pin_s": PIN_S})
        except MigrationRefused as refusal:
            get_logger().info("pins_not_announced", cell=source.cell, reason=str(refusal))
            return False
        return True

    async def fetch(
        self, left: Left, destination: Engine, tokens: array[int], deadline_s: float
    ) -> Carried:
        """As `carry`, of a call that has ended: pins its tokens first, within the same time."""
        deadline = asyncio.get_running_loop().time() + deadline_s
        body = {"rid": left.rid, "input_ids": np.asarray(tokens), "pin_s": PIN_S}
        try:
            answer = await self._ask(left.engine.url, "/pin_cache", left.job, deadline_s, body)
        except MigrationRefused as refusal:
            get_logger().info("cache_not_migrated", rid=left.rid, reason=str(refusal))
            await self.release(left)
            return NOTHING
        if not answer.get("pinned_tokens"):
            return NOTHING
        left_s = max(RELEASE_S, deadline - asyncio.get_running_loop().time())
        return await self.carry(left, destination, tokens, left_s)

    async def carry(
        self,
        left: Left,
        destination: Engine,
        tokens: array[int],
        deadline_s: float = COPY_S,
    ) -> Carried:
        """Copies what is pinned of `tokens` and releases the pin. Never raises for an engine."""
        carried = NOTHING
        if destination.url != left.engine.url:
            try:
                carried = await self._copy(left, destination, tokens, deadline_s)
            except MigrationRefused as refusal:
                get_logger().info("cache_not_migrated", rid=left.rid, reason=str(refusal))
        await self.release(left)
        return carried

    async def release(self, left: Left) -> None:
        """The source need not keep anything. If it does not hear it, the pin's own end comes."""
        try:
            await self._ask(left.engine.url, "/unpin_cache", left.job, RELEASE_S, {"rid": left.rid})
        except MigrationRefused as refusal:
            get_logger().debug("pin_not_released", rid=left.rid, reason=str(refusal))

    async def _copy(
        self, left: Left, destination: Engine, tokens: array[int], deadline_s: float
    ) -> Carried:
        body = {
            "source": left.engine.url,
            "rid": left.rid,
            "input_ids": np.asarray(tokens),
            "deadline_s": deadline_s,
        }
        timeout_s = deadline_s + 1.0
        answer = await self._ask(destination.url, "/pull_cache", left.job, timeout_s, body)
        try:
            carried = Carried(
                tokens=int(answer["copied_tokens"]),
                num_cached=int(answer["cached_tokens"]),
                num_bytes=int(answer["copied_bytes"]),
                seconds=float(answer["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MigrationRefused(f"not an answer to a copy: {error!r}") from error
        get_logger().info(
            "cache_migrated",
            rid=left.rid,
            source=left.engine.cell,
            destination=destination.cell,
            tokens=carried.tokens,
            bytes=carried.num_bytes,
            seconds=round(carried.seconds, 4),
            hit_share=round(carried.num_cached / max(1, len(tokens) - 1), 4),
            error=answer.get("error"),
        )
        return carried

    async def _ask(
        self, url: str, path: str, job: str, timeout_s: float, body: dict[str, Any]
    ) -> dict[str, Any]:
        """Raises MigrationRefused."""
        key = make_migration_key(self._key_secret, job)
        try:
            async with self._session.post(
                url + path,
                # Token ids as an array, which is five times as fast as a list.
                data=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
                headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                content = await response.read()
                if response.status != 200:
                    raise MigrationRefused(f"{url}{path}: HTTP {response.status}")
                answer = orjson.loads(content)
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
            raise MigrationRefused(f"{url}{path}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise MigrationRefused(f"{url}{path}: not a JSON object")
        return answer
