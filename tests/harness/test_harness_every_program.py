"""What holds for every agent program: its turns come back and are known, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_plays import play_through
from gyre.testkit.harness_programs import Program
from gyre.testkit.harness_script import raw_tool_call

# Each turn runs STEP-2 at least once.
TURNS = {
    "text and a call": "I look. {step}",
    "parallel calls": "{step}\n{step}\n{step}",
    "text between calls": "One. {step}\nTwo. {step}\nThree.",
    "white space around text": "  \n I look. \n\n{step}",
    "thinking": "<think>\nI should look.\n</think>\n\nI look.{step}",
    "thinking and a call": "<think>\nI should look.\n</think>\n\n{step}",
    "a call that cannot be read": "I try. " + raw_tool_call("{{broken") + "\n{step}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_a_turn_comes_back_and_is_known(
    tmp_path: Path, script_model: Path, program: Program, turn: str
) -> None:
    scenes = program.two_turns(turn.format(step=program.step(2)))
    outcome = await play_through(tmp_path, script_model, program, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []
