"""A sampled turn as clients see it: its ids, and what of it comes back in their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from gyre.core.matching import SentTurn
from gyre.core.tree_nodes import Node
from gyre.proxy.codecs.encoding import Codec, ParsedTurn
from gyre.proxy.requests import Answer, AnswerCall, Request, TokenLogprob


def sampled_turn(
    codec: Codec, request: Request, opening: Node, output: Sequence[int]
) -> ParsedTurn:
    """What was sampled behind `opening`, as the client that asked can take it."""
    return codec.parse(
        output,
        tool_calls=request.tool_calls,
        tools=request.tools,
        opening=opening.token_ids,
    )


def sent_turn(call: str, turn: ParsedTurn) -> SentTurn:
    """What the client was sent, as far as its echo is matched."""
    return SentTurn(
        content=turn.content,
        tool_call_ids=tuple(tool_call_id(call, index) for index in range(len(turn.tool_calls))),
        reasoning=turn.reasoning or "",
    )


def tool_call_id(call: str, index: int) -> str:
    """`call_` and 24 hex digits, unique in the stack, the same after a restart."""
    return "call_" + sha256(f"{call}\x1f{index}".encode()).hexdigest()[:24]


def num_reasoning_tokens(
    turn: ParsedTurn, output_ids: Sequence[int], text: Callable[[Sequence[int]], str]
) -> int:
    """The fewest tokens, from the turn's first, whose text holds its reasoning, which comes before
    all else. text: of token ids."""
    if not turn.reasoning:
        return 0
    low, high = 0, len(output_ids)
    # Text that is known not to hold it is not made again, unless it ends within a character.
    start, before = 0, ""
    while low < high:
        middle = (low + high) // 2
        said = before + text(output_ids[start:middle])
        if turn.reasoning in said:
            high = middle
            continue
        low = middle + 1
        if not said.endswith("\ufffd"):
            start, before = middle, said
    return high


def as_answer(
    call: str,
    turn: ParsedTurn,
    *,
    created: int,
    finish: str,
    num_input: int,
    num_output: int,
    num_cached: int,
    num_reasoning: int = 0,
    logprobs: tuple[TokenLogprob, ...] = (),
) -> Answer:
    """The answer that `turn` makes. created: unix seconds. finish: unless it ends in tool calls."""
    return Answer(
        call=call,
        created=created,
        content=turn.content,
        reasoning=turn.reasoning,
        tool_calls=tuple(
            AnswerCall(id=tool_call_id(call, index), name=item.name, arguments=item.arguments)
            for index, item in enumerate(turn.tool_calls)
        ),
        finish_reason="tool_calls" if turn.tool_calls else finish,
        prompt_tokens=num_input,
        completion_tokens=num_output,
        cached_tokens=num_cached,
        reasoning_tokens=num_reasoning,
        logprobs=logprobs,
    )
