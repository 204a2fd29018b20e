"""Model families other than Qwen3 through the whole proxy, over an engine that says what it is
told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallRecorded
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.testkit.family_tokenizers import make_family_tokenizer
from gyre.testkit.proxy_world import Facts, running_proxy
from gyre.testkit.scripted_engine import scripted_engine
from gyre.testkit.specs import job_spec

EXECUTION = "job-test-g0000-e0"
# A turn that calls a tool and one that does not, as each family's model says them.
TURNS = {
    "deepseek-r1": (
        (
            "hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n"
            '```json\n{"path": "7"}\n```<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        ),
        "so</think>Done.<｜end▁of▁sentence｜>",
    ),
    "deepseek-v4": (
        (
            'hm</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n'
            '<｜DSML｜parameter name="path" string="true">7</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
        ),
        "so</think>Done.<｜end▁of▁sentence｜>",
    ),
    "gemma4": (
        (
            "<|channel>thought\nhm\n<channel|>"
            '<|tool_call>call:write_file{path:<|"|>7<|"|>}<tool_call|><|tool_response>'
        ),
        "<|channel>thought\nso\n<channel|>Done.<turn|>",
    ),
    "glm-5": (
        (
            "hm</think><tool_call>write_file<arg_key>path</arg_key><arg_value>7</arg_value>"
            "</tool_call><|observation|>"
        ),
        "so</think>Done.<|user|>",
    ),
    "gpt-oss": (
        (
            "hm<|end|><|start|>assistant<|channel|>commentary to=functions.write_file "
            '<|constrain|>json<|message|>{"path": "7"}<|call|>'
        ),
        "so<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
    ),
    "kimi-k2.5": (
        (
            "hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
            '<|tool_call_argument_begin|>{"path": "7"}<|tool_call_end|>'
            "<|tool_calls_section_end|><|im_end|>"
        ),
        "so</think>Done.<|im_end|>",
    ),
    "llama-3": ('{"name": "write_file", "parameters": {"path": "7"}}<|eot_id|>', "Done.<|eot_id|>"),
    "qwen3.5": (
        (
            "hm\n</think>\n\n<tool_call>\n<function=write_file>\n<parameter=path>\n7\n</parameter>\n"
            "</function>\n</tool_call><|im_end|>"
        ),
        "so\n</think>\n\nDone.<|im_end|>",
    ),
}


@pytest.mark.parametrize("family", sorted(TURNS))
async def test_a_conversation_goes_on_from_what_was_sampled(tmp_path: Path, family: str) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    model = make_family_tokenizer(tmp_path / "m", family)
    sections = {"model": {"path": str(model), "family": family}, "rollout": {"max_new_tokens": 400}}
    spec = job_spec(heldout=False, sections=sections)
    submitted = JobSubmitted(spec=spec, train_tasks=(), heldout_tasks=())
    await facts.append(subjects.sched(facts.job), submitted)
    called, done = TURNS[family]
    async with scripted_engine(model, called, done, done) as engine, running_proxy(log) as served:
        await facts.rollout(0, engine.url)
        client = served.client(await facts.start(EXECUTION))
        message = await client.chat("go")
        [call] = message["tool_calls"]
        assert call["function"] == {"name": "write_file", "arguments": '{"path": "7"}'}
        assert (await client.chat("and?"))["content"].strip() == "Done."
        await client.chat("Thanks.")
        asked = [request["input_ids"] for request in engine.requests]
        stops = engine.requests[0]["sampling_params"]["stop_token_ids"]
    calls = [it for it in await facts.calls(EXECUTION) if isinstance(it, CallRecorded)]
    assert [it.fork_reason for it in calls] == [None] * 3
    assert [it.finish_reason for it in calls] == ["stop"] * 3
    for before, after, event in zip(asked, asked[1:], calls, strict=False):
        assert event.output_ids[-1] in stops
        read = [*before, *event.output_ids]
        assert after[: len(read)] == read
