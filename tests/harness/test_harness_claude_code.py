"""Claude Code 2.1.220 over the Messages API: its agents, its summaries, its own requests."""

from __future__ import annotations

from pathlib import Path

from gyre.testkit.harness_plays import play_through, submit
from gyre.testkit.harness_programs import CLAUDE_CODE, WRITE
from gyre.testkit.harness_script import Scene, tool_call
from gyre.testkit.harness_world import harness_world

PROGRAM = CLAUDE_CODE
SYNCHRONOUS = {"env": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}}
# Some 6600 tokens: three of them are more than the context that compactions are shown with.
NOISE = "seq -s ' ' 1000 3000; "
SUMMARY = Scene(
    cue="CRITICAL: Respond with TEXT ONLY",
    says="<analysis>a</analysis>\n<summary>SUMMARY-1</summary>",
)


def agent(part: int) -> str:
    return tool_call(
        "Agent",
        description=f"part {part}",
        prompt=f"PART-{part}: do it",
        subagent_type="general-purpose",
    )


async def test_two_tools_of_one_turn_come_back_in_one_history(
    tmp_path: Path, script_model: Path
) -> None:
    write = tool_call("Write", file_path="answer.txt", content="seven 7")
    scenes = (
        Scene(cue="TASK-1", says="Both. " + PROGRAM.step(2) + "\n" + PROGRAM.step(3)),
        Scene(cue="STEP-3", says=write + "\n" + PROGRAM.step(9)),
        PROGRAM.done(),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_sub_agents_side_by_side_are_told_apart_and_delegation_is_their_only_fork(
    tmp_path: Path, script_model: Path
) -> None:
    answer = 'echo "$(cat a.txt) $(cat b.txt)" > answer.txt; '
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + agent(1) + "\n" + agent(2)),
        Scene(cue="PART-1", says=PROGRAM.step(2, "printf seven > a.txt; ")),
        Scene(cue="PART-2", says=PROGRAM.step(3, "printf 7 > b.txt; ")),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="STEP-3", says="RESULT-2"),
        Scene(cue="RESULT-", says=PROGRAM.step(9, answer)),
        PROGRAM.done(),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes, settings=SYNCHRONOUS)
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 4
    assert len(outcome.agents) == 2
    assert None not in outcome.agents
    assert outcome.forks == ["delegation", "delegation"]
    assert [cause[1:] for cause in outcome.causes] == [("delegation", 0)] * 2


async def test_sub_agents_with_one_task_and_one_request_have_calls_of_their_own(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="Twice. " + agent(1) + "\n" + agent(1)),
        Scene(cue="PART-1", says=PROGRAM.step(2, WRITE)),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes, settings=SYNCHRONOUS)
    assert sorted(outcome.roles) == ["main"] * 2 + ["sub-agent"] * 4
    first = [call for call in outcome.calls if call.fork_reason == "delegation"]
    assert len(outcome.agents) == len(first) == 2
    tree = outcome.tree()
    assert len({tree.node(call.node).parent for call in first}) == 1
    assert outcome.forks == ["delegation", "delegation"]


async def test_a_sub_agents_own_sub_agent_names_its_parent(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + agent(1)),
        Scene(cue="PART-1", says="So do I. " + agent(2)),
        Scene(cue="PART-2", says=PROGRAM.step(2, WRITE)),
        Scene(cue="STEP-2", says="RESULT-2"),
        Scene(cue="RESULT-2", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes, settings=SYNCHRONOUS)
    assert outcome.roles == ["main", *["sub-agent"] * 4, "main"]
    outer, inner = outcome.calls[1], outcome.calls[2]
    assert outer.parent_agent is None
    assert inner.parent_agent == outer.agent
    assert [call.agent for call in outcome.calls[1:5]] == [
        outer.agent,
        inner.agent,
        inner.agent,
        outer.agent,
    ]
    assert outcome.forks == ["delegation", "delegation"]
    assert outcome.causes == [(1, "delegation", 0), (2, "delegation", 1)]


async def test_an_agent_in_the_background_reports_into_the_history_of_its_parent(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says="I delegate. " + agent(1)),
        Scene(cue="Async agent launched", says="I wait."),
        Scene(cue="PART-1", says=PROGRAM.step(2, "sleep 1; " + WRITE)),
        Scene(cue="STEP-2", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(tmp_path, script_model, PROGRAM, scenes)
    assert sorted(outcome.roles) == ["main"] * 3 + ["sub-agent"] * 2
    assert outcome.forks == ["delegation"]
    # Whether or not the parent has said that it waits by then.
    assert outcome.causes == [(outcome.roles.index("sub-agent"), "delegation", 0)]


async def test_the_programs_own_request_for_a_title_is_no_agents(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=PROGRAM.step(9, WRITE)),
        Scene(cue="title", says='{"title": "An answer"}'),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        PROGRAM,
        scenes,
        settings={"env": {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": ""}},
    )
    assert sorted(outcome.roles) == ["main", "main", "other"]
    assert outcome.forks == ["other_role"]


async def test_a_full_context_is_summed_up_and_the_task_goes_on(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=PROGRAM.step(2, NOISE)),
        Scene(cue="STEP-2", says=PROGRAM.step(3, NOISE)),
        Scene(cue="STEP-3", says=PROGRAM.step(4, NOISE)),
        SUMMARY,
        Scene(cue="STEP-4", says=PROGRAM.step(9, WRITE)),
        PROGRAM.done(),
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        PROGRAM,
        scenes,
        settings={"bare": True},
        context_tokens=20_000,
        max_new_tokens=1000,
    )
    assert outcome.roles == ["main"] * 3 + ["main-summary"] + ["main"] * 2
    assert outcome.forks == ["compaction", "compaction"]
    assert outcome.causes == [(3, "summary", 2), (4, "continuation", 3)]
    assert max(call.num_input_tokens for call in outcome.calls) <= 20_000


async def test_a_sub_agents_full_context_is_summed_up_too(
    tmp_path: Path, script_model: Path
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=agent(1)),
        Scene(cue="PART-1", says=PROGRAM.step(2, NOISE)),
        Scene(cue="STEP-2", says=PROGRAM.step(3, NOISE)),
        Scene(cue="STEP-3", says=PROGRAM.step(4, NOISE)),
        SUMMARY,
        Scene(cue="STEP-4", says=PROGRAM.step(5, WRITE)),
        Scene(cue="STEP-5", says="RESULT-1"),
        Scene(cue="RESULT-1", says="Done."),
    )
    outcome = await play_through(
        tmp_path,
        script_model,
        PROGRAM,
        scenes,
        settings=SYNCHRONOUS | {"tools": ["Bash", "Agent"]},
        context_tokens=21_500,
        max_new_tokens=1000,
    )
    sub_agent = ["sub-agent"] * 3 + ["sub-agent-summary"] + ["sub-agent"] * 2
    assert outcome.roles == ["main", *sub_agent, "main"]
    assert outcome.forks == ["delegation", "compaction", "compaction"]
    assert outcome.causes == [
        (1, "delegation", 0),
        (4, "summary", 3),
        (5, "continuation", 4),
    ]


async def test_an_execution_whose_calls_fail_has_failed(tmp_path: Path, script_model: Path) -> None:
    """The context is too short for its very first prompt, and there is nothing to sum up."""
    async with harness_world(tmp_path, script_model, ()) as world:
        await submit(world, PROGRAM, script_model, settings={"bare": True}, context_tokens=500)
        outcome = await world.execute()
    assert outcome.end.reason == "failed"
    assert outcome.calls == []
    assert '"is_error":true' in outcome.logs[0]
