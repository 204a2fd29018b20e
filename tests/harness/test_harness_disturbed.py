"""What happens to a turn in its middle, or to its answer, and no agent program notices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gyre.testkit.harness_outcome import Outcome
from gyre.testkit.harness_plays import (
    BRISK,
    HELD_TOKENS,
    Disturb,
    assert_moved,
    assert_published,
    keep_waiting,
    kill_engine,
    kill_proxy,
    kill_proxy_once_it_streams,
    play_overloaded,
    play_through,
    publish,
    submit,
    switch_roles,
)
from gyre.testkit.harness_programs import WRITE, Program
from gyre.testkit.harness_script import Scene
from gyre.testkit.harness_world import Staging, harness_world


@pytest.mark.parametrize(
    ("disturb", "staging", "assert_went_on"),
    [
        (switch_roles, Staging(num_engines=2), assert_moved),
        (kill_engine, Staging(num_engines=2, engine_processes=True), assert_moved),
        (publish, Staging(), assert_published),
    ],
    ids=["role switch", "engine killed", "weights published"],
)
async def test_a_turn_goes_on_and_the_program_notices_nothing(
    tmp_path: Path,
    script_model: Path,
    program: Program,
    disturb: Disturb,
    staging: Staging,
    assert_went_on: Callable[[Outcome], None],
) -> None:
    scenes = program.two_turns(program.step(2), holds_after=HELD_TOKENS)
    outcome = await play_through(
        tmp_path, script_model, program, scenes, staging=staging, disturb=disturb
    )
    assert outcome.roles == ["main"] * 3
    assert_went_on(outcome)


async def test_a_proxy_killed_in_mid_turn_is_asked_again_and_answers(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    scenes = program.two_turns(program.step(2), holds_after=HELD_TOKENS)
    outcome = await play_through(
        tmp_path,
        script_model,
        program,
        scenes,
        staging=Staging(proxy_process=True),
        disturb=kill_proxy,
        lost={"STEP-2": 1},
    )
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


@pytest.mark.parametrize("program", ["claude-code", "codex"], indirect=True)
async def test_a_stream_that_breaks_before_its_turn_is_asked_for_again(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    scenes = program.two_turns(program.step(2), holds_after=HELD_TOKENS)
    outcome = await play_through(
        tmp_path,
        script_model,
        program,
        scenes,
        staging=Staging(proxy_process=True, wired=True, limits=BRISK),
        disturb=kill_proxy_once_it_streams,
        lost={"STEP-2": 1},
    )
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_signs_of_life_are_no_part_of_the_turn(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    scenes = program.two_turns(program.step(2), holds_after=HELD_TOKENS)
    outcome = await play_through(
        tmp_path,
        script_model,
        program,
        scenes,
        staging=Staging(limits=BRISK),
        disturb=keep_waiting,
    )
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


@pytest.mark.parametrize("program", ["claude-code", "codex"], indirect=True)
async def test_a_program_out_of_time_ends_and_what_it_did_is_scored(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    scenes = (
        Scene(cue="TASK-1", says=program.step(2, WRITE)),
        Scene(cue="STEP-2", says="I go on and on. " * 10, holds_after=HELD_TOKENS),
    )
    async with harness_world(tmp_path, script_model, scenes) as world:
        await submit(world, program, script_model, timeout_s=15.0)
        outcome = await world.execute()
    assert outcome.end.reason == "timeout"
    assert outcome.reward == 1.0
    assert [call.outcome for call in outcome.calls] == ["committed", "aborted"]
    assert len(outcome.calls[1].output_ids) == HELD_TOKENS


async def test_a_proxy_killed_before_its_answer_gives_it_to_the_programs_retry(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    """The turn is in the log: it is not sampled again."""
    outcome = await play_through(
        tmp_path,
        script_model,
        program,
        program.two_turns(program.step(2)),
        staging=Staging(proxy_process=True, failpoint="proxy.after_append:2"),
    )
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []


async def test_an_overloaded_proxy_is_asked_again_when_it_says(
    tmp_path: Path, script_model: Path, program: Program
) -> None:
    scenes = program.two_turns(program.step(2))
    outcome, calls = await play_overloaded(tmp_path, script_model, program, scenes)
    assert outcome.roles == ["main"] * 3
    assert outcome.forks == []
    statuses = [call.status for call in calls]
    refused = statuses.index(200)
    assert refused >= 1
    overload = 529 if program.name == "claude-code" else 503
    assert statuses == [overload] * refused + [200] * 3
    assert {call.retry_after for call in calls[:refused]} == {"2"}
    asked = [call.at for call in calls[: refused + 1]]
    assert min(later - at for at, later in pairwise(asked)) >= 2.0
