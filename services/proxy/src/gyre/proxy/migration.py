"""Takes a call's cached prefix along to the engine where it goes on.

    pin + cancel   at the source, one step: its blocks cannot be evicted before they are copied
    copy           the destination fetches from the source what it does not have yet
    confirm        the destination says how much of the prefix its cache now holds
    release        only then does the source drop the pin, and may leave

An engine that cannot do this (SGLang has no such routes) or a copy that fails costs the call
nothing but time: the destination prefills again. Each step has a deadline, and a pin that this
process never releases ends by itself at the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import aiohttp
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

    def event(self, call: str, execution: str, num_prefilled: int) -> CallRerouted:
        """num_prefilled: tokens that the destination computed before it sampled."""
        return CallRerouted(
            call=call,
            execution=execution,
            source=self.source.cell,
            destination=self.destination.cell,
            tokens_kept=self.kept,
            reason=self.reason,
            tokens_migrated=self.carried.tokens,
            tokens_prefilled_again=num_prefilled,
            migration_s=self.carried.seconds,
        )


class Migration:
    """The engines' port for cached prefixes. Holds no state: keys are derived from the secret."""

    def __init__(self, session: aiohttp.ClientSession, key_secret: str) -> None:
        self._session = session
        self._key_secret = key_secret

    async def carry(self, left: Left, destination: Engine, tokens: Sequence[int]) -> Carried:
        """Copies what is pinned of `tokens` and releases the pin. Never raises for an engine."""
        carried = NOTHING
        if destination.url != left.engine.url:
            try:
                carried = await self._copy(left, destination, tokens)
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

    async def _copy(self, left: Left, destination: Engine, tokens: Sequence[int]) -> Carried:
        body = {
            "source": left.engine.url,
            "rid": left.rid,
            "input_ids": list(tokens),
            "deadline_s": COPY_S,
        }
        answer = await self._ask(destination.url, "/pull_cache", left.job, COPY_S + 1.0, body)
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
                data=orjson.dumps(body),
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
