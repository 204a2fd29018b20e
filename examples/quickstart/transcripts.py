"""Transcripts of the agent at work, of mixed quality, as text and as tokens.

A transcript is the list of the model's turns on one task, each with the tool's answer. Good ones
do the task. Bad ones make one mistake on purpose, so that the warm-started policy knows the
format and the skill but does not use them reliably: that is what reinforcement learning mends.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from renderers import Qwen3Renderer
from tasks import SOURCE, TARGET_COUNTS, WORDS, Split, Task, draw_task

TOOLS_FILE = Path(__file__).parent / "tools.py"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "properties": {argument: {"type": "string"} for argument in arguments},
                "required": arguments,
                "type": "object",
            },
        },
    }
    for name, description, arguments in (
        ("read_file", "Read a file", ["path"]),
        ("write_file", "Write a file", ["content", "path"]),
    )
]
"""What `llm` 0.36 puts into a request's `tools` for tools.py, key order included."""

DRAFT = "draft.txt"
PHRASES = ("The answer is ", "KEY=")
MISTAKES = {
    "sum": ("draft", "phrase"),
    "larger": ("draft", "phrase", "draft", "phrase", "smaller"),
    "copy": ("draft", "phrase", "draft", "phrase", "unread"),
}
LESSONS = ("sum", "sum", "larger", "copy", "copy")
"""How often the transcripts show each family; telling the larger digit is learnt soonest."""
LAST_WORDS = ("Done.", "Done.", "I wrote the file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion (without its end token) and the tool's answer; None ends the transcript."""

    completion: str
    tool_result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a whole transcript; `is_target` marks those that the model produced."""

    ids: list[int]
    is_target: list[bool]


@cache
def tool_functions() -> dict[str, Any]:
    """The functions of tools.py, found as the harness finds them."""
    namespace: dict[str, Any] = {}
    exec(TOOLS_FILE.read_text(encoding="utf-8"), namespace)  # noqa: S102 - as the harness does
    return {
        name: value
        for name, value in namespace.items()
        if callable(value) and not name.startswith("_")
    }


def call(name: str, **arguments: str) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def write(path: str, content: str) -> Turn:
    return Turn(completion=call("write_file", content=content, path=path), tool_result="ok")


def read_source(task: Task) -> list[Turn]:
    """The turns that look at the material before any write: one for copy, none otherwise."""
    completion = call("read_file", path=SOURCE)
    return [Turn(completion=completion, tool_result=text) for text in task.files.values()]


def good_turns(task: Task, rng: random.Random) -> list[Turn]:
    """The task done right."""
    last = Turn(completion=rng.choice(LAST_WORDS))
    return [*read_source(task), *(write(target, task.value) for target in task.targets), last]


def bad_turns(task: Task, rng: random.Random) -> list[Turn]:
    """The task done with one mistake, drawn from MISTAKES."""
    last = Turn(completion=rng.choice(LAST_WORDS))
    before = read_source(task)
    targets, value = task.targets, task.value
    match rng.choice(MISTAKES[task.family]):
        case "draft":
            targets = (DRAFT,)
        case "phrase":
            value = PHRASES[task.family == "copy"] + value
        case "smaller":
            value = min(task.material)
        case "unread":
            before, value = [], rng.choice(WORDS)
    return [*before, *(write(target, value) for target in targets), last]


def draw_transcript(rng: random.Random, good_fraction: float) -> tuple[Task, list[Turn]]:
    """A random training task and an agent's turns on it; never a held-out combination."""
    split: Split = "train"
    task = draw_task(rng, rng.choice(LESSONS), rng.choice(TARGET_COUNTS), split)
    turns = good_turns if rng.random() < good_fraction else bad_turns
    return task, turns(task, rng)


def encode_transcript(
    renderer: Qwen3Renderer, tokenizer: Any, task: Task, turns: Sequence[Turn]
) -> Example:
    """Tokens as the proxy would record them: a rendered prompt, then only bridged extensions."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    ids = list(renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
    is_target = [False] * len(ids)
    for turn in turns:
        completion = [*tokenizer.encode(turn.completion, add_special_tokens=False), end]
        before, ids = ids, ids + completion
        is_target += [True] * len(completion)
        if turn.tool_result is not None:
            answer: list[Any] = [{"role": "tool", "tool_call_id": "c", "content": turn.tool_result}]
            bridged = renderer.bridge_to_next_turn(before, completion, answer, tools=TOOLS)
            if bridged is None or list(bridged.token_ids[: len(ids)]) != ids:
                raise ValueError("the renderer cannot extend this transcript by a tool's answer")
            ids = list(bridged.token_ids)
            is_target += [False] * (len(ids) - len(is_target))
    return Example(ids=ids, is_target=is_target)


def iterate_examples(
    renderer: Qwen3Renderer, tokenizer: Any, rng: random.Random, good_fraction: float, count: int
) -> Iterator[Example]:
    """`count` encoded random transcripts."""
    for _ in range(count):
        yield encode_transcript(renderer, tokenizer, *draw_transcript(rng, good_fraction))
