"""Codex 0.171.0 over the Responses API: its echoes, its agents, its compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_plays import play_through, submit
from gyre.testkit.harness_programs import CODEX, WRITE
from gyre.testkit.harness_script import Scene, raw_tool_call, tool_call
from gyre.testkit.harness_world import harness_world

PROGRAM = CODEX
STEP = PROGRAM.step(2)
# The same commands and results, told apart by what the model says around them.
ODD = r'{"name": "exec_command", "arguments": '
ODD += r'{"yield_time_ms": %s,  "cmd": "echo STEP-$((1+1)); echo \u00e9 \/ \u2028"}}'
TURNS = {
    "escapes and spacing": raw_tool_call(ODD % "5000"),
    "a float that is an integer": raw_tool_call(ODD % "5000.0") + "\n" + STEP,
    "an exponent": raw_tool_call(ODD % "5e3") + "\n" + STEP,
    "an unknown tool": tool_call("nope", b=1, a={"y": 1, "x": 2}) + "\n" + STEP,
    "input that no schema allows": tool_call("exec_command", cmd=7) + "\n" + STEP,
}
# Some 3300 tokens.
NOISE = "seq -s ' ' 1000 2000; "


# A main agent that does nothing until its sub-agents have done the task.
WAIT = "while [ ! -f answer.txt ]; do sleep 0.1; done; sleep 2; "


def spawn(part: int, **how: bool) -> str:
    return tool_call("multi_agent_v1.spawn_agent", message=f"PART-{part}: do it", **how)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_an_odd_turn_comes_back_and_is_known(
    tmp_path: Path, script_model: Path, turn: str
) -> None:
    outcome = await play_through(tmp_path, script_model, PROGRAM, PROGRAM.two_turns(turn))
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_sub_agents_side_by_side_are_told_apart_and_delegation_is_their_only_fork(
    tmp_path: Path, script_model: Path
) -> None:
    wait = "while [ ! -f a.txt -o ! -f b.txt ]; do sleep 0.1; done; sleep 2; "
    answer = 'echo "$(cat a.txt) $(cat b.txt)" > answer.txt; '
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + spawn(1) + "\n" + spawn(2)),
        Scene(cue="agent_id", says=PROGRAM.step(9, wait + answer)),
        Scene(cue="PART-1", says=PROGRAM.step(2, "printf seven > a.txt; ")),
        Scene(cue="PART-2", says=PROGRAM.step(3, "printf 7 > b.txt; ")),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="STEP-3", says="RESULT-2"),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path, script_model, PROGRAM, scenes, settings={"sub_agents": True}
    )
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 4
    assert len(outcome.agents) == 2
    assert None not in outcome.agents
    assert outcome.forks == ["delegation", "delegation"]
    # The main agent has gone on before its sub-agents' first answers are in.
    assert [cause[1:] for cause in outcome.causes] == [("delegation", 0)] * 2


async def test_a_sub_agent_that_takes_its_parents_words_along_is_a_delegation_too(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I look. " + STEP),
        Scene(cue="STEP-2", says=spawn(1, fork_context=True)),
        Scene(cue="agent_id", says=PROGRAM.step(9, WAIT)),
        Scene(cue="PART-1", says=PROGRAM.step(3, WRITE)),
        Scene(cue="STEP-3", says="RESULT-1"),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path, script_model, PROGRAM, scenes, settings={"sub_agents": True}
    )
    assert sorted(outcome.roles) == ["main"] * 4 + ["sub-agent"] * 2
    assert outcome.forks == ["delegation"]
    assert outcome.causes == [(outcome.roles.index("sub-agent"), "delegation", 1)]


async def test_a_full_context_is_summed_up_and_the_task_goes_on(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=PROGRAM.step(2, NOISE)),
        Scene(cue="STEP-2", says=PROGRAM.step(3, NOISE)),
        Scene(cue="STEP-3", says=PROGRAM.step(4, NOISE)),
        Scene(cue="STEP-4", says=PROGRAM.step(5)),
        Scene(cue="CONTEXT CHECKPOINT COMPACTION", says="SUMMARY-1"),
        Scene(cue="SUMMARY-1", says=PROGRAM.step(9, WRITE)),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path, script_model, PROGRAM, scenes, context_tokens=22_000, max_new_tokens=3000
    )
    assert outcome.roles == ["main"] * 4 + ["main-summary"] + ["main"] * 2
    assert outcome.forks == ["compaction", "compaction"]
    assert outcome.causes == [(4, "summary", 3), (5, "continuation", 4)]


async def test_a_sub_agents_full_context_is_summed_up_too(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + spawn(1)),
        Scene(cue="agent_id", says=PROGRAM.step(9, WAIT)),
        Scene(cue="PART-1", says=PROGRAM.step(2, NOISE)),
        Scene(cue="STEP-2", says=PROGRAM.step(3, NOISE)),
        Scene(cue="STEP-3", says=PROGRAM.step(4, NOISE)),
        Scene(cue="CONTEXT CHECKPOINT COMPACTION", says="SUMMARY-1"),
        Scene(cue="SUMMARY-1", says=PROGRAM.step(6, WRITE)),
        Scene(cue="STEP-6", says="RESULT-1"),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        PROGRAM,
        scenes,
        settings={"sub_agents": True},
        context_tokens=19_500,
        max_new_tokens=3000,
    )
    assert sorted(outcome.roles) == sorted(["main"] * 3 + ["sub-agent"] * 5 + ["sub-agent-summary"])
    assert len(outcome.agents) == 1
    assert outcome.forks == ["delegation", "compaction", "compaction"]
    its = [place for place, role in enumerate(outcome.roles) if role.startswith("sub-agent")]
    assert outcome.causes == [
        (its[0], "delegation", 0),
        (its[3], "summary", its[2]),
        (its[4], "continuation", its[3]),
    ]


async def test_a_turn_cut_by_the_limit_ends_it(tmp_path: Path, script_model: Path) -> None:
    """As with its vendor: a response that is incomplete is fatal to it. What it did is scored."""
    scenes = (
        Scene(cue="TASK-1", says=PROGRAM.step(2, WRITE)),
        Scene(cue="STEP-2", says="CUT " + "word " * 300),
    )
    async with harness_world(tmp_path, script_model, scenes) as world:
        await submit(world, PROGRAM, script_model, max_new_tokens=100)
        outcome = await world.execute()
    assert outcome.end.reason == "failed"
    assert outcome.reward == 1.0
    assert [call.finish_reason for call in outcome.calls] == ["stop", "length"]
    assert outcome.forks == []
