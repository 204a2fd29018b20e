"""The peer of bench_trees.py as a process: `verifiers`' message graph of one execution.

Runs in the peer's own environment, which has nothing of Gyre. Reads the execution from the file
that it is given and prints one line of JSON: the seconds of the fastest round, what the graph has
and what its branches train. Only the graph's own work is timed; messages and tokens are ready.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from verifiers.v1.agent import AgentConfig
from verifiers.v1.graph import prepare_turn
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import (
    AssistantMessage,
    Response,
    SystemMessage,
    ToolMessage,
    TurnTokens,
    UserMessage,
)

NUM_ROUNDS = 7


def message(role: str, text: str) -> Any:
    match role:
        case "system":
            return SystemMessage(content=text)
        case "user":
            return UserMessage(content=text)
        case "tool":
            return ToolMessage(content=text, tool_call_id="call")
        case _:
            return AssistantMessage(content=text)


def turns(run: dict[str, Any]) -> list[tuple[list[Any], Response]]:
    """Each call's messages and answer, with the tokens of the whole prompt and of each message."""
    found = []
    for number, (sent, answer) in enumerate(run["calls"]):
        prompt: list[int] = []
        spans: list[tuple[int, int]] = []
        for place in sent:
            start = len(prompt)
            if run["roles"][place] == "assistant":
                prompt += run["opener"]
            prompt += run["tokens"][place]
            spans.append((start, len(prompt)))
        prompt += run["opener"]
        output = run["tokens"][answer]
        tokens = TurnTokens(
            prompt_ids=prompt,
            completion_ids=output,
            completion_logprobs=[-0.5] * len(output),
            message_spans=spans,
        )
        reply = Response(
            id=str(number),
            created=0,
            model="policy",
            message=message("assistant", run["texts"][answer]),
            finish_reason="stop",
            tokens=tokens,
        )
        found.append(([message(run["roles"][place], run["texts"][place]) for place in sent], reply))
    return found


def build(played: list[tuple[list[Any], Response]]) -> Trace:
    task = TraceTask(type="bench", data=TaskData(idx=0, prompt=None))
    trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
    for prompt, reply in played:
        prepare_turn(trace, prompt).commit(reply)
    return trace


def main(path: Path) -> None:
    run = json.loads(path.read_text())
    played = turns(run)
    seconds = float("inf")
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        trace = build(played)
        seconds = min(seconds, time.perf_counter() - start)
    times: Counter[int] = Counter()
    for branch in trace.branches:
        if branch.trainable:
            times.update(id(node) for node in branch.nodes if node.sampled)
    sampled = {id(node): sum(node.mask) for node in trace.nodes if node.sampled}
    delivered = sum(sampled[node] for node in times)
    report = {
        "seconds": seconds,
        "num_tokens": sum(len(node.token_ids) for node in trace.nodes),
        "num_branches": len(trace.branches),
        "delivered": delivered / sum(len(run["tokens"][answer]) for _, answer in run["calls"]),
        "trained_times": sum(sampled[node] * num for node, num in times.items()) / delivered,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
