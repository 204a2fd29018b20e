"""What Claude Code 2.1.220 changes in the turns that it sends back: none of it is a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_plays import play_through
from gyre.testkit.harness_programs import CLAUDE_CODE, WRITE
from gyre.testkit.harness_script import Scene, raw_tool_call, tool_call

PROGRAM = CLAUDE_CODE
LAST = PROGRAM.step(9, WRITE)
STEP = PROGRAM.step(2)
ODD = r'{"name": "Bash", "arguments": '
ODD += r'{"timeout": %s,  "command": "echo STEP-$((1+1)); echo \u00e9 \/ \u2028"}}'
TURNS = {
    "escapes and spacing": raw_tool_call(ODD % "5000"),
    "a float that is an integer": raw_tool_call(ODD % "5000.0"),
    "an exponent": raw_tool_call(ODD % "5e3"),
    "a number beyond 53 bits": raw_tool_call(ODD % "12345678901234567890") + "\n" + STEP,
    "keys twice": raw_tool_call(ODD.replace('{"timeout"', '{"command": "x", "timeout"') % "1e4"),
    "keys like integers": raw_tool_call(
        r'{"name": "Nope", "arguments": {"b": 1, "7": 2, "a": -0.0, "1": 1e2}}'
    )
    + "\n"
    + STEP,
    "an unknown tool": tool_call("Nope", b=1, a={"y": 1, "x": 2}) + "\n" + STEP,
    "input that no schema allows": tool_call("Edit", file_path=7, wrong=True) + "\n" + STEP,
    "trailing spaces in a file": tool_call("Write", file_path="b.txt", content="a  \nb \n")
    + "\n"
    + STEP,
    "trailing spaces in an edit": tool_call("Write", file_path="b.txt", content="a b")
    + tool_call("Edit", new_string="c \n d  ", old_string="b", file_path="b.txt")
    + "\n"
    + STEP,
    # No text can hold it: the call goes out as the text that it was.
    "half of a character": raw_tool_call(
        r'{"name": "Bash", "arguments": {"command": "echo \ud800"}}'
    )
    + "\n"
    + STEP,
    "a number as a string": tool_call("Read", file_path="task.md", offset="1", limit="1")
    + "\n"
    + STEP,
    "a step into the same directory": tool_call("Bash", command="cd $PWD && echo STEP-$((1+1))"),
    "white space alone beside a call": "<think>\nhm\n</think>\n\n \n " + STEP,
    "many calls": "\n".join([STEP] * 6),
}


async def run(
    tmp_path: Path, model: Path, *scenes: Scene, num_calls: int, max_new_tokens: int = 8192
) -> None:
    """The script's task is done, all of it is recorded, and there is no fork."""
    outcome = await play_through(
        tmp_path,
        model,
        PROGRAM,
        scenes,
        settings={"tools": ["Bash", "Edit", "Read", "Write"]},
        max_new_tokens=max_new_tokens,
    )
    assert outcome.roles == ["main"] * num_calls
    assert outcome.forks == []


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_an_odd_turn_comes_back_and_is_known(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    await run(
        tmp_path,
        script_model,
        Scene(cue="TASK-1", says=turn),
        Scene(cue="STEP-2", says=LAST),
        PROGRAM.done(),
        num_calls=3,
    )


@pytest.mark.parametrize(
    "blank",
    ["", " \n ", "<think>\nI only think.\n</think>\n\n"],
    ids=["nothing", "white space", "thinking alone"],
)
async def test_a_turn_without_words_is_dropped_by_the_client_and_kept_in_the_tree(
    tmp_path: Path, script_model: Path, blank: str
) -> None:
    await run(
        tmp_path,
        script_model,
        Scene(cue="TASK-1", says=STEP),
        Scene(cue="STEP-2", says=blank),
        Scene(cue="had no visible output", says=LAST),
        PROGRAM.done(),
        num_calls=4,
    )


@pytest.mark.parametrize("said", ["CUT " + "word " * 300, "<think>\n" + "word " * 300])
async def test_a_turn_cut_by_the_limit_goes_on_where_it_was(
    tmp_path: Path, script_model: Path, said: str
) -> None:
    await run(
        tmp_path,
        script_model,
        Scene(cue="TASK-1", says=STEP),
        Scene(cue="STEP-2", says=said),
        Scene(cue="utput token limit", says=LAST),
        PROGRAM.done(),
        num_calls=4,
        max_new_tokens=100,
    )


async def test_a_call_that_is_whole_in_a_turn_that_was_cut_is_run(
    tmp_path: Path, script_model: Path
) -> None:
    await run(
        tmp_path,
        script_model,
        Scene(cue="TASK-1", says=STEP + "\nCUT " + "word " * 300),
        Scene(cue="STEP-2", says=LAST),
        PROGRAM.done(),
        num_calls=3,
        max_new_tokens=100,
    )
