"""Copies a pinned prefix from another engine into this one's cache.

    what is missing here? -> ask the source for those rows -> check whose they are -> cache block
    by block -> say how much of the prefix is cached now

Every block is cached in one command of the model thread that first looks whether the weights in
service are still the pinned ones': an entry carries its version and is used under no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import aiohttp
from torch import Tensor

from gyre.cell_agent.engine.local.blocks import (
    Header,
    block_bounds,
    block_bytes,
    decode_block,
    kv_shape,
    read_header,
    tokens_digest,
)
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import TransferError
from gyre.cell_agent.engine.local.scheduler import Scheduler

HEADER = "X-Gyre-Blocks"
CONNECT_TIMEOUT_S = 2.0
NAMESPACE = (None, None)
"""The proxy's requests name no `extra_key` and no `cache_salt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """source: base url. rid: of the aborted request there. tokens: its context and what it had
    sampled."""

    source: str
    rid: str
    tokens: Sequence[int]
    deadline_s: float


@dataclass(slots=True, kw_only=True)
class Pulled:
    """cached_tokens: of the prefix, in this engine's cache now; copied_tokens, copied_bytes: what
    came for it, mutated as it comes. error: why not all came."""

    cached_tokens: int = 0
    copied_tokens: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0
    error: str | None = None


async def pull(engine: LocalEngine, wanted: Wanted, key: str) -> Pulled:
    """Never raises for what the source, the network or a publication does: see `Pulled.error`."""
    began = time.monotonic()
    pulled = Pulled()
    try:
        async with asyncio.timeout(wanted.deadline_s), engine.pulls:
            await _copy(engine, wanted, key, pulled)
    except TimeoutError:
        pulled.error = f"not copied within {wanted.deadline_s:g} s"
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        pulled.error = f"{wanted.source}: {type(error).__name__}: {error}"
    except TransferError as error:
        pulled.error = str(error)
    pulled.seconds = time.monotonic() - began
    return pulled


async def _copy(engine: LocalEngine, wanted: Wanted, key: str, pulled: Pulled) -> None:
    tokens = wanted.tokens[: len(wanted.tokens) - 1]
    here = await engine.thread.call(_looking(tokens))
    pulled.cached_tokens = here.num_cached
    if pulled.cached_tokens == len(tokens):
        return
    asked = {"rid": wanted.rid, "start": pulled.cached_tokens, "end": len(tokens)}
    async with (
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        ) as session,
        session.post(
            f"{wanted.source}/cache_blocks",
            json=asked,
            headers={"Authorization": f"Bearer {key}"},
            allow_redirects=False,
        ) as response,
    ):
        if response.status != 200:
            said = (await response.content.read(300)).decode("utf-8", "replace")
            raise TransferError(f"{wanted.source}: HTTP {response.status}: {said}")
        header = read_header(response.headers.get(HEADER, ""))
        _check(engine, tokens, header, here)
        await _take_blocks(engine, tokens[: header.end], header, here, response.content, pulled)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    """weights, version: in service when the copy began, and in the cache to be extended."""

    weights: Hashable
    version: str
    num_cached: int


def _looking(tokens: Sequence[int]) -> Callable[[Scheduler], _Here]:
    def look(scheduler: Scheduler) -> _Here:
        runner = scheduler.runner
        if not runner.kv_allocated:
            raise TransferError("the destination's memory is released")
        return _Here(
            weights=runner.weights,
            version=scheduler.weight_version,
            num_cached=len(runner.cache.match((*NAMESPACE, runner.weights), tokens)),
        )

    return look


def _check(engine: LocalEngine, tokens: Sequence[int], header: Header, here: _Here) -> None:
    """Raises TransferError unless what comes is the KV that was asked for."""
    if header.version != here.version:
        raise TransferError(f"pinned under {header.version}, served here is {here.version}")
    if header.shape != kv_shape(engine.config.shapes):
        raise TransferError(f"a model of other sizes: {header.shape}")
    if header.start != here.num_cached or not header.start <= header.end <= len(tokens):
        raise TransferError(f"tokens {header.start} to {header.end} were not asked for")
    if header.tokens != tokens_digest(tokens[: header.end]):
        raise TransferError("the pinned tokens are others")


async def _take_blocks(
    engine: LocalEngine,
    tokens: Sequence[int],
    header: Header,
    here: _Here,
    content: aiohttp.StreamReader,
    pulled: Pulled,
) -> None:
    for start, end in block_bounds(header.start, header.end):
        data = await content.readexactly(block_bytes(header.shape, end - start))
        pulled.copied_bytes += len(data)
        rows = decode_block(data, header.shape)
        pulled.cached_tokens = await engine.thread.call(
            _putting(here.weights, tokens[:end], start, rows)
        )
        if pulled.cached_tokens < end:
            raise TransferError("the cache has no room for the prefix")
        pulled.copied_tokens += end - start


def _putting(
    weights: Hashable, tokens: Sequence[int], start: int, rows: Tensor
) -> Callable[[Scheduler], int]:
    def put(scheduler: Scheduler) -> int:
        runner = scheduler.runner
        if not runner.kv_allocated or runner.weights != weights:
            raise TransferError("the destination got other weights, or gave its memory back")
        return runner.cache.extend((*NAMESPACE, weights), tokens, start, rows)

    return put
