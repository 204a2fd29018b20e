"""The task that agent programs are led through: write `seven 7` into answer.txt.

Every play ends the same way: exit status 0, the task done, every scripted token recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from gyre.contracts.events.calls import CallRerouted
from gyre.testkit.harness_world import (
    EXECUTION,
    HarnessWorld,
    Outcome,
    assert_recorded_whole,
    harness_world,
)
from gyre.testkit.played_engine import Play, Scene

INSTRUCTION = "TASK-1: write the answer"
WRITE = "printf 'seven 7' > answer.txt; "
_TEST_SH = """#!/bin/sh
if [ "$(cat answer.txt)" = "seven 7" ]; then reward=1; else reward=0; fi
echo $reward > "$LOGS_DIR/verifier/reward.txt"
"""
HELD_TOKENS = 20


def step(number: int, command: str = "") -> str:
    """A shell command whose result, not whose text, holds STEP-<number>."""
    return f"{command}echo STEP-$(({number - 1}+1))"


async def play_through(
    root: Path, model: Path, profile: str, scenes: Sequence[Scene], **job: Any
) -> Outcome:
    """One execution of the script. job: as `HarnessWorld.submit` takes it."""
    async with harness_world(root, model, scenes) as world:
        await submit(world, profile, model, **job)
        outcome = await world.execute()
    assert_played(outcome, world.play)
    return outcome


async def play_disturbed(
    root: Path,
    model: Path,
    profile: str,
    scenes: Sequence[Scene],
    disturb: Callable[[HarnessWorld], Awaitable[object]],
    **job: Any,
) -> Outcome:
    """As `play_through` over two engines; `disturb` is called in the middle of the turn that holds
    still after HELD_TOKENS. Those are kept, and the rest of the turn comes from cell 1."""
    async with harness_world(root, model, scenes, engines=2) as world:
        await submit(world, profile, model, **job)
        await world.order()
        async with asyncio.timeout(30):
            await world.play.held.wait()
        await disturb(world)
        outcome = await world.outcome()
    assert_played(outcome, world.play)
    assert outcome.forks == []
    rerouted = [event for event in outcome.events if isinstance(event, CallRerouted)]
    assert {event.tokens_kept for event in rerouted} == {HELD_TOKENS}
    [call] = {event.call for event in rerouted}
    [cut] = [each for each in outcome.calls if each.call == call]
    assert [span.cell for span in cut.spans] == [0, 1]
    assert cut.spans[0].end == HELD_TOKENS
    return outcome


async def switch_roles(world: HarnessWorld) -> None:
    """Cell 0 goes to training."""
    await world.facts.move(0, 1, EXECUTION)


async def kill_engine(world: HarnessWorld) -> None:
    """Cell 0's engine is killed; later the scheduler moves the execution."""
    await world.engines[0].kill()
    await world.facts.move(0, 1, EXECUTION)


def assert_played(outcome: Outcome, play: Play) -> None:
    assert not play.surprises, play.surprises[0]
    assert outcome.end.reason == "completed", outcome.logs
    assert outcome.end.exit_code == 0
    assert outcome.reward == 1.0
    assert_recorded_whole(outcome, play)


async def submit(world: HarnessWorld, profile: str, model: Path, **job: Any) -> None:
    """The job with the one task. job: as `HarnessWorld.submit` takes it."""
    await world.submit(profile, model, instruction=INSTRUCTION, test_sh=_TEST_SH, **job)
