"""mini-swe-agent 2.4.6 over chat completions: what it alone does with a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_plays import play_through
from gyre.testkit.harness_programs import MINI_SWE_AGENT, WRITE
from gyre.testkit.harness_script import Scene, raw_tool_call, tool_call

PROGRAM = MINI_SWE_AGENT
ODD = raw_tool_call(
    r'{"name":"bash",  "arguments": {"command" : "echo STEP-$((1+1)); echo \u00e9 \/"}}'
)
DROPPED = {
    "an unknown tool": tool_call("nope", a=1),
    "no call": "I am done, I think.",
    "nothing": "",
}


async def test_escapes_and_spacing_come_back_and_are_known(
    tmp_path: Path, script_model: Path
) -> None:
    outcome = await play_through(tmp_path, script_model, PROGRAM, PROGRAM.two_turns(ODD))
    assert outcome.forks == []


@pytest.mark.parametrize("turn", DROPPED.values(), ids=DROPPED)
async def test_a_turn_that_it_cannot_use_is_left_out_of_its_history(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=PROGRAM.step(2)),
        Scene(cue="STEP-2", says=turn),
        Scene(cue="Tool call error", says=PROGRAM.step(9, WRITE)),
        PROGRAM.done(),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes)
    assert outcome.roles == ["main"] * 4
    # A blank turn says nothing that could be missing: the history goes on through it.
    assert outcome.forks == ([] if turn == "" else ["dropped_turn"])
