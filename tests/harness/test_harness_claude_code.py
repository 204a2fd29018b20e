"""Claude Code 2.1.220 over the Messages API."""

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
    submit,
    switch_roles,
)
from gyre.testkit.harness_world import HarnessWorld, harness_world
from gyre.testkit.played_engine import Scene, tool_call

HARNESS = "claude-code"
SYNCHRONOUS = {"env": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}}
DONE = Scene(cue="STEP-9", says="Done.")


def bash(number: int, command: str = "") -> str:
    return tool_call("Bash", command=step(number, command))


def agent(part: int) -> str:
    return tool_call(
        "Agent",
        description=f"part {part}",
        prompt=f"PART-{part}: do it",
        subagent_type="general-purpose",
    )


async def test_a_tool_loop_is_recorded_whole_and_never_forks(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I look. " + bash(2)),
        Scene(cue="STEP-2", says=bash(9, WRITE)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_parallel_tools_come_back_in_one_history(tmp_path: Path, script_model: Path) -> None:
    write = tool_call("Write", file_path="answer.txt", content="seven 7")
    scenes = (
        Scene(cue="TASK-1", says="Both. " + bash(2) + "\n" + bash(3)),
        Scene(cue="STEP-3", says=write + "\n" + bash(9)),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_sub_agents_are_told_apart_and_delegation_is_their_only_fork(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + agent(1) + "\n" + agent(2)),
        Scene(cue="PART-1", says=bash(2, "printf seven > a.txt; ")),
        Scene(cue="PART-2", says=bash(3, "printf 7 > b.txt; ")),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="STEP-3", says="RESULT-2"),
        Scene(cue="RESULT-", says=bash(9, 'echo "$(cat a.txt) $(cat b.txt)" > answer.txt; ')),
        DONE,
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes, settings=SYNCHRONOUS)
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 4
    agents = {call.agent for call in outcome.calls if call.request_role == "sub-agent"}
    assert len(agents) == 2
    assert None not in agents
    assert outcome.forks == ["delegation", "delegation"]


async def test_an_agent_in_the_background_reports_into_the_history_of_its_parent(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + agent(1)),
        Scene(cue="Async agent launched", says="I wait."),
        Scene(cue="PART-1", says=bash(2, "sleep 1; " + WRITE)),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(tmp_path, script_model, HARNESS, scenes)
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 2
    assert outcome.forks == ["delegation"]


async def test_a_full_context_is_summed_up_and_the_task_goes_on(
    tmp_path: Path, script_model: Path
) -> None:
    noise = "seq -s ' ' 1000 3000; "
    summary = "<analysis>a</analysis>\n<summary>SUMMARY-1</summary>"
    scenes = (
        Scene(cue="TASK-1", says=bash(2, noise)),
        Scene(cue="STEP-2", says=bash(3, noise)),
        Scene(cue="STEP-3", says=bash(4, noise)),
        Scene(cue="CRITICAL: Respond with TEXT ONLY", says=summary),
        Scene(cue="STEP-4", says=bash(9, WRITE)),
        DONE,
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        HARNESS,
        scenes,
        settings={"bare": True},
        context_tokens=14_500,
        max_new_tokens=1000,
    )
    assert outcome.roles == ["main"] * 3 + ["main-summary"] + ["main"] * 2
    assert outcome.forks == ["compaction", "compaction"]
    assert max(call.num_input_tokens for call in outcome.calls) <= 14_500


async def test_a_sub_agents_full_context_is_summed_up_too(
    tmp_path: Path, script_model: Path
) -> None:
    noise = "seq -s ' ' 1000 3000; "
    summary = "<analysis>a</analysis>\n<summary>SUMMARY-1</summary>"
    scenes = (
        Scene(cue="TASK-1", says=agent(1)),
        Scene(cue="PART-1", says=bash(2, noise)),
        Scene(cue="STEP-2", says=bash(3, noise)),
        Scene(cue="STEP-3", says=bash(4, noise)),
        Scene(cue="CRITICAL: Respond with TEXT ONLY", says=summary),
        Scene(cue="STEP-4", says=bash(5, WRITE)),
        Scene(cue="STEP-5", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        HARNESS,
        scenes,
        settings=SYNCHRONOUS | {"tools": ["Bash", "Agent"]},
        context_tokens=16_500,
        max_new_tokens=1000,
    )
    sub_agent = ["sub-agent"] * 3 + ["sub-agent-summary"] + ["sub-agent"] * 2
    assert outcome.roles == ["main", *sub_agent, "main"]
    assert outcome.forks == ["delegation", "compaction", "compaction"]


@pytest.mark.parametrize("disturb", [switch_roles, kill_engine])
async def test_a_turn_goes_on_elsewhere_and_the_program_notices_nothing(
    tmp_path: Path, script_model: Path, disturb: Callable[[HarnessWorld], Awaitable[object]]
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=bash(2)),
        Scene(cue="STEP-2", says="I write it down. " + bash(9, WRITE), holds_after=HELD_TOKENS),
        DONE,
    )
    outcome = await play_disturbed(tmp_path, script_model, HARNESS, scenes, disturb)
    assert outcome.roles == ["main"] * 3


async def test_an_execution_whose_calls_fail_has_failed(tmp_path: Path, script_model: Path) -> None:
    """The context is too short for its very first prompt, and there is nothing to sum up."""
    async with harness_world(tmp_path, script_model, ()) as world:
        await submit(world, HARNESS, script_model, settings={"bare": True}, context_tokens=500)
        outcome = await world.execute()
    assert outcome.end.reason == "failed"
    assert outcome.calls == []
    assert '"is_error":true' in outcome.logs[0]
