"""Finds where a request goes on. What takes long is done beside the event loop, so that one long
text holds up no other execution: the tokenizer gives way while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import orjson

from gyre.core.matching import Opening, Plan
from gyre.core.messages import num_chars
from gyre.core.origins import Origin
from gyre.core.tree_nodes import ASSISTANT
from gyre.proxy.codecs.encoding import Codec
from gyre.proxy.live import Live
from gyre.proxy.requests import BadRequest, Request

# Characters that are encoded in some 10 ms; a thread costs a tenth of one.
LONG = 64 * 1024

# Of a tool, about; agents bring up to some thirty, and the same each time.
_TOOL_CHARS = 500
_TOO_DEEP = (RecursionError, orjson.JSONEncodeError)

# Bytes of a body that are parsed in some 10 ms where it is all small messages; usual ones are ten
# times as fast.
LONG_BODY = 256 * 1024

T = TypeVar("T")


def opening_of(live: Live, request: Request) -> Opening:
    """How the request begins. Raises BadRequest."""
    try:
        return live.matcher.opening(request.messages, request.tools)
    except _TOO_DEEP as error:
        raise _nested(error) from error


async def plan_of(
    live: Live, attempt: int, request: Request, codec: Codec, origin: Origin, opening: Opening
) -> Plan:
    """The path to sample from. The caller holds `live.asking`, which guards the matcher.

    Raises BadRequest.
    """

    def plan() -> Plan:
        return live.matcher.plan(
            request.messages,
            request.tools,
            attempt=attempt,
            encoder=codec,
            request_role=origin.role,
            agent=origin.agent,
            opening=opening,
            trail=None if request.reading is None else request.reading.trail,
        )

    try:
        num_new = _num_new_chars(live, request) + _TOOL_CHARS * len(request.tools)
        return await beside(plan) if num_new > LONG else plan()
    except _TOO_DEEP as error:  # of the tools, before anything else
        raise _nested(error) from error


def _nested(error: Exception) -> BadRequest:
    return BadRequest(f"the tools are nested too deeply: {error}", param="tools")


def is_strange(live: Live, plan: Plan) -> bool:
    """Whether the history is not the one known here: who has written meanwhile may know it."""
    tree = live.matcher.tree
    return plan.fork_reason is not None or any(
        tree.node(node).role == ASSISTANT for node in plan.added
    )


async def beside(work: Callable[[], T]) -> T:
    """Does `work` in a thread. Returns or is cancelled only after it has ended: what it uses is the
    caller's until then."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        raise


def _num_new_chars(live: Live, request: Request) -> int:
    """About how many characters have to be encoded: those since the last turn, and what the request
    has more than any served before it."""
    messages = request.messages
    after = len(messages)
    while after > 0 and messages[after - 1].role != "assistant":
        after -= 1
    return max(num_chars(messages[after:]), request.num_chars - live.num_chars)
