"""What finding the known path costs in a long conversation: `python tests/bench/bench_matching.py`.

One conversation of 200 turns with a tool call each; the last request is planned and undone, over
and over, without JSON and without HTTP. Also: what 100 such turns hold in memory. Writes
out/bench/matching.json.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import to_builtins

from gyre.core.matching import SentTurn
from gyre.core.messages import Message, ToolCall
from gyre.testkit.benches import write_report
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, ToyEncoder

NUM_TURNS = 200
NUM_ROUNDS = 200
RESULT_CHARS = 2000
OUTPUT_TOKENS = 100
TARGETS = {"plan_us_per_kB": 2.0, "memory_kB_per_100_turns": 1000.0}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": "run", "description": "x" * 300, "parameters": {"type": "object"}},
}


class ShortEncoder(ToyEncoder):
    """A token for every four characters, as real ones, so that memory is as it would be."""

    def _encode(self, text: str) -> Any:
        return super()._encode(text[: len(text) // 4])


def conversation(num_turns: int) -> tuple[MatchedCalls, list[Message]]:
    """Played through, and its last request."""
    calls, encoder = MatchedCalls(), ShortEncoder()
    messages = [
        Message(role="system", content="s" * 2000),
        Message(role="user", content="do it " * 40),
    ]
    for index in range(num_turns):
        plan = calls.matcher.plan(messages, [TOOL], attempt=1, encoder=encoder)
        encoder.encoded.clear()
        identity = f"call_{index:024x}"
        output = (*(300 + index for _ in range(OUTPUT_TOKENS)), CLOSE)
        calls.record(plan, output, SentTurn(content="so", tool_call_ids=(identity,)))
        call = ToolCall(id=identity, name="run", arguments='{"command": "ls"}')
        messages += [
            Message(role="assistant", content="so", tool_calls=(call,)),
            Message(role="tool", content=f"{index} " * (RESULT_CHARS // 4), tool_call_id=identity),
        ]
    return calls, messages


def body_kB(messages: list[Message]) -> float:  # noqa: N802 - the unit
    """About what a client sends for them."""
    return len(orjson.dumps({"messages": to_builtins(messages), "tools": [TOOL]})) / 1e3


def plan_us(num_turns: int) -> tuple[float, float]:
    """(microseconds of one plan, the fastest of many; kB of its body)."""
    calls, messages = conversation(num_turns)
    encoder, fastest = ShortEncoder(), float("inf")
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        plan = calls.matcher.plan(messages, [TOOL], attempt=1, encoder=encoder)
        fastest = min(fastest, time.perf_counter() - start)
        assert plan.fork_reason is None
        calls.matcher.undo(plan)
    return fastest * 1e6, body_kB(messages)


def memory_kB() -> float:  # noqa: N802 - the unit
    """What an execution of 100 turns holds."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    matcher = conversation(100)[0].matcher
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert matcher.tree.num_calls == 100
    return (after - before) / 1e3


def main() -> None:
    micros, size = plan_us(NUM_TURNS)
    figures = {
        "plan_us_per_kB": round(micros / size, 3),
        "memory_kB_per_100_turns": round(memory_kB(), 1),
        "plan_us": round(micros, 1),
        "body_kB": round(size, 1),
        "us_per_message": round(micros / (2 * NUM_TURNS), 3),
    }
    ok = all(figures[name] <= target for name, target in TARGETS.items())
    write_report("matching", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
