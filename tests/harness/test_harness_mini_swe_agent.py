"""mini-swe-agent 2.4.6 over chat completions."""

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

HARNESS = "mini-swe-agent"
# It ends with this command alone, and only then.
DONE = Scene(
    cue="STEP-9", says=tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
)


def bash(number: int, command: str = "") -> str:
    return tool_call("bash", command=step(number, command))


TURNS = {
    "a plain turn": "I look. " + bash(2),
    "escapes and spacing": raw_tool_call(
        r'{"name":"bash",  "arguments": {"command" : "echo STEP-$((1+1)); echo \u00e9 \/"}}'
    ),
    "parallel calls": "\n".join([bash(2)] * 3),
    "thinking": "<think>\nI should look.\n</think>\n\nI look." + bash(2),
    "a call that cannot be read": "I try. " + raw_tool_call("{broken") + "\n" + bash(2),
    "white space around text": "  \n I look. \n\n" + bash(2),
}
DROPPED = {
    "an unknown tool": tool_call("nope", a=1),
    "no call": "I am done, I think.",
    "nothing": "",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_a_turn_comes_back_and_is_known(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=turn),
        Scene(cue="STEP-2", says=bash(9, WRITE)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


@pytest.mark.parametrize("turn", DROPPED.values(), ids=DROPPED)
async def test_a_turn_that_it_cannot_use_is_left_out_of_its_history(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=bash(2)),
        Scene(cue="STEP-2", says=turn),
        Scene(cue="Tool call error", says=bash(9, WRITE)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 4
    # A blank turn says nothing that could be missing: the history goes on through it.
    assert outcome.forks == ([] if turn == "" else ["dropped_turn"])


@pytest.mark.parametrize("disturb", [switch_roles, kill_engine])
async def test_a_turn_goes_on_elsewhere_and_the_program_notices_nothing(
    tmp_path: Path,
    script_model: Path,
    disturb: Callable[[HarnessWorld], Awaitable[object]],
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=bash(2)),
        Scene(cue="STEP-2", says="I write it down. " + bash(9, WRITE), holds_after=HELD_TOKENS),
        DONE,
    )
    outcome = await play_disturbed(tmp_path, script_model, HARNESS, scenes, disturb)
    assert outcome.roles == ["main"] * 3
