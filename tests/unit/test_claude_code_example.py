"""The warm start for Claude Code, for a request of its shape: no program is needed."""

from __future__ import annotations

import importlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoTokenizer

from gyre.proxy.apis.messages import Messages
from gyre.proxy.requests import Sampling
from gyre.testkit.modules import load_module

EXAMPLES = Path(__file__).parents[2] / "examples"
BASH = {
    "name": "Bash",
    "description": "Runs a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def warmstart() -> Any:
    """The example's module, its transcripts few and its phases short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(EXAMPLES / "quickstart"), *sys.path])
        model = importlib.import_module("model")
        patch.setattr(model, "MAX_POSITIONS", model.MAX_POSITIONS)  # the example sets another
        path = EXAMPLES / "claude-code" / "warmstart.py"
        loaded: Any = load_module(path, "claude_code_warmstart")
        patch.setattr(loaded, "NUM_TRANSCRIPTS", 200)
        short = [
            replace(phase, num_steps=1, batch_size=2, num_examples=16)
            for phase in loaded.quickstart.PHASES
        ]
        patch.setattr(loaded.quickstart, "PHASES", short)
        yield loaded


def prompts(warmstart: ModuleType, *, day: str = "2026-01-05", says: str = "Be brief.") -> Any:
    asked = f"Today is {day}.\n{warmstart.PROMPT}"
    body = {
        "model": "policy",
        "max_tokens": 64,
        "system": says,
        "tools": [BASH],
        "messages": [{"role": "user", "content": asked}],
    }
    sampling = Sampling(temperature=1.0, max_new_tokens=64)
    request = Messages().parse(json.dumps(body).encode(), {}, sampling).request
    return warmstart.Prompts(request=request)


def test_a_prompt_is_the_programs_with_the_task_in_it_on_another_day(warmstart: Any) -> None:
    task, _ = warmstart.draw_transcript(random.Random(0), good_fraction=1.0)
    days = set()
    for seed in range(5):
        [message] = prompts(warmstart).inputs(task, random.Random(seed))
        assert message.content.endswith(f".\n{task.prompt}")
        days.add(message.content.split("\n")[0])
    assert len(days) == 5


def test_another_prompt_is_another_warm_start_and_another_day_is_not(warmstart: Any) -> None:
    first = warmstart.manifest(1, prompts(warmstart))

    assert warmstart.manifest(1, prompts(warmstart, day="2026-02-07")) == first
    assert warmstart.manifest(1, prompts(warmstart, says="Be clear.")) != first
    assert warmstart.manifest(2, prompts(warmstart)) != first


def test_what_is_trained_are_the_turns_as_the_proxy_records_them(
    warmstart: Any, tmp_path: Path
) -> None:
    asked = prompts(warmstart)
    policy = warmstart.warm_start(1, asked, tmp_path)

    codec = warmstart.load_codec(str(tmp_path), "qwen3")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert policy.shape.vocab_size == len(tokenizer)
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 2048
    task, turns = warmstart.draw_transcript(random.Random(3), good_fraction=1.0)
    head = codec.head(asked.request.tools, asked.system)
    inputs = asked.inputs(task, random.Random(0))
    example = warmstart.encode(codec, tokenizer, head, inputs, turns)

    first = next(place for place, said in enumerate(example.is_target) if said)
    sent = [*head, *(token for part in codec.inputs(inputs) for token in part)]
    assert example.ids[:first] == [*sent, *codec.generation()]
    targets = [token for token, said in zip(example.ids, example.is_target, strict=True) if said]
    spoken = [warmstart.in_shell(turn).completion for turn in turns]
    assert tokenizer.decode(targets) == "".join(f"{text}<|im_end|>" for text in spoken)
    called = codec.parse(example.ids[first:][: example.is_target[first:].index(False)])
    assert [call.name for call in called.tool_calls] == ["Bash"]
