"""Codex 0.171.0 over the Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gyre.testkit.harness_plays import (
    HELD_TOKENS,
    WRITE,
    kill_engine,
    play_disturbed,
    play_through,
    step,
    switch_roles,
)
from gyre.testkit.harness_world import HarnessWorld
from gyre.testkit.played_engine import Scene, raw_tool_call, tool_call

HARNESS = "codex"
DONE = Scene(cue="STEP-9", says="Done.")
# The same commands and results, told apart by what the model says around them.
ODD = r'{"name": "exec_command", "arguments": '
ODD += r'{"yield_time_ms": %s,  "cmd": "echo STEP-$((1+1)); echo \u00e9 \/ \u2028"}}'


def shell(number: int, command: str = "") -> str:
    return tool_call("exec_command", cmd=step(number, command))


TURNS = {
    "escapes and spacing": raw_tool_call(ODD % "5000"),
    "a float that is an integer": raw_tool_call(ODD % "5000.0") + "\n" + shell(2),
    "an exponent": raw_tool_call(ODD % "5e3") + "\n" + shell(2),
    "an unknown tool": tool_call("nope", b=1, a={"y": 1, "x": 2}) + "\n" + shell(2),
    "input that no schema allows": tool_call("exec_command", cmd=7) + "\n" + shell(2),
    "white space around text": "  \n I look. \n\n" + shell(2),
    "thinking": "<think>\nI should look.\n</think>\n\nI look." + shell(2),
    "thinking and a call": "<think>\nI should look.\n</think>\n\n" + shell(2),
    "text between calls": "One. " + shell(2) + "\nTwo. " + shell(2) + "\nThree.",
    "a call that cannot be read": "I try. " + raw_tool_call("{broken") + "\n" + shell(2),
    "parallel calls": "\n".join([shell(2)] * 4),
}


async def test_a_tool_loop_is_recorded_whole_and_never_forks(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I look. " + shell(2)),
        Scene(cue="STEP-2", says=shell(9, WRITE)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_an_odd_turn_comes_back_and_is_known(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=turn),
        Scene(cue="STEP-2", says=shell(9, WRITE)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_a_sub_agent_is_told_apart_and_delegation_is_its_only_fork(
    tmp_path: Path, script_model: Path
) -> None:
    spawn = tool_call("multi_agent_v1.spawn_agent", message="PART-1: do it")
    wait = "while [ ! -f answer.txt ]; do sleep 0.1; done; sleep 2; "
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + spawn),
        Scene(cue="agent_id", says=shell(9, wait)),
        Scene(cue="PART-1", says=shell(2, WRITE)),
        Scene(cue="STEP-2", says="RESULT-1"),
        DONE,
    )
    outcome = await play_through(
        tmp_path, script_model, HARNESS, scenes, settings={"sub_agents": True}
    )
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 2
    [agent] = {call.agent for call in outcome.calls if call.request_role == "sub-agent"}
    assert agent is not None
    assert outcome.forks == ["delegation"]


async def test_a_full_context_is_summed_up_and_the_task_goes_on(
    tmp_path: Path, script_model: Path
) -> None:
    noise = "seq -s ' ' 1000 2500; "
    scenes = (
        Scene(cue="TASK-1", says=shell(2, noise)),
        Scene(cue="STEP-2", says=shell(3, noise)),
        Scene(cue="STEP-3", says=shell(4, noise)),
        Scene(cue="STEP-4", says=shell(5)),
        Scene(cue="CONTEXT CHECKPOINT COMPACTION", says="SUMMARY-1"),
        Scene(cue="SUMMARY-1", says=shell(9, WRITE)),
        DONE,
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        HARNESS,
        scenes,
        context_tokens=22_000,
        max_new_tokens=2000,
    )
    assert outcome.roles == ["main"] * 4 + ["main-summary"] + ["main"] * 2
    assert outcome.forks == ["compaction", "compaction"]


@pytest.mark.parametrize("disturb", [switch_roles, kill_engine])
async def test_a_turn_goes_on_elsewhere_and_the_program_notices_nothing(
    tmp_path: Path,
    script_model: Path,
    disturb: Callable[[HarnessWorld], Awaitable[object]],
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=shell(2)),
        Scene(cue="STEP-2", says="I write it down. " + shell(9, WRITE), holds_after=HELD_TOKENS),
        DONE,
    )
    outcome = await play_disturbed(tmp_path, script_model, HARNESS, scenes, disturb)
    assert outcome.roles == ["main"] * 3
