"""The task that agent programs are led through: write `seven 7` into answer.txt.

Every play ends the same way: exit status 0, the task done, every scripted token recorded. What
disturbs a turn does so in its middle, after HELD_TOKENS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from gyre.core.routing import weight_version_name
from gyre.testkit.execution_world import until
from gyre.testkit.harness_outcome import Outcome, assert_recorded_whole
from gyre.testkit.harness_processes import EngineProcess
from gyre.testkit.harness_programs import Program
from gyre.testkit.harness_script import Play, Scene
from gyre.testkit.harness_wire import Exchange
from gyre.testkit.harness_world import EXECUTION, HarnessWorld, Staging, harness_world

INSTRUCTION = "TASK-1: write the answer"
TEST_SH = """#!/bin/sh
if [ "$(cat answer.txt)" = "seven 7" ]; then reward=1; else reward=0; fi
echo $reward > "$LOGS_DIR/verifier/reward.txt"
"""
HELD_TOKENS = 20
_WAIT_S = 2.0
# A sign of life so often that a program which is kept waiting gets many.
BRISK = {"keepalive_s": 0.1}
# Another execution, which takes the proxy's only place for calls.
_OTHER = f"{EXECUTION}-other"
_OTHERS_CUE = "BLOCK-1"

Disturb = Callable[[HarnessWorld], Awaitable[object]]


async def play_through(
    root: Path,
    model: Path,
    program: Program,
    scenes: Sequence[Scene],
    *,
    staging: Staging | None = None,
    disturb: Disturb | None = None,
    lost: Mapping[str, int] | None = None,
    **job: Any,
) -> Outcome:
    """One execution of the script. disturb: called when a scene stands still. lost: as
    `assert_recorded_whole` takes it. job: as `HarnessWorld.submit` takes it. A proxy that is a
    process is there to be killed, once."""
    async with harness_world(root, model, scenes, staging) as world:
        await submit(world, program, model, **job)
        await world.order()
        if disturb is not None:
            await world.play.until_held()
            await disturb(world)
        outcome = await world.outcome()
        assert_played(outcome, world.play, lost=lost)
        assert world.proxy is None or world.proxy.num_starts == 2
    return outcome


async def switch_roles(world: HarnessWorld) -> None:
    """Cell 0 goes to training."""
    await world.facts.move(0, 1, EXECUTION)


async def kill_engine(world: HarnessWorld) -> None:
    """Cell 0's engine is killed; later the scheduler moves the execution."""
    engine = world.engines[0]
    assert isinstance(engine, EngineProcess)
    await engine.kill()
    await world.facts.move(0, 1, EXECUTION)


async def publish(world: HarnessWorld) -> None:
    """Cell 0's engine gets the weights of version 1, as its agent gives them to it."""
    url = world.engines[0].url
    await tell_engine(url, "pause_generation", mode="retract")
    version = weight_version_name(0, 1)
    await tell_engine(url, "update_weights_from_disk", model_path="v1", weight_version=version)
    await tell_engine(url, "continue_generation")


async def kill_proxy(world: HarnessWorld) -> None:
    """With SIGKILL; another one takes up its socket."""
    assert world.proxy is not None
    world.proxy.kill()


async def kill_proxy_once_it_streams(world: HarnessWorld) -> None:
    """The program has its answer's head and signs of life, and nothing of the turn."""
    wire = world.wire
    assert wire is not None

    async def streams() -> bool:
        return wire.calls[-1].status is not None

    await until(streams, 30.0)
    await kill_proxy(world)


async def keep_waiting(world: HarnessWorld) -> None:
    """For many times what the proxy lets pass between two signs of life."""
    await asyncio.sleep(_WAIT_S)
    await tell_engine(world.engines[0].url, "continue_generation")


async def tell_engine(url: str, what: str, **body: object) -> None:
    """One order of an agent to its engine."""
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(f"{url}/{what}", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def play_overloaded(
    root: Path, model: Path, program: Program, scenes: Sequence[Scene]
) -> tuple[Outcome, list[Exchange]]:
    """One execution that begins while the proxy has no room for its calls, until it was refused
    once; also what it said to the proxy."""
    block = Scene(cue=_OTHERS_CUE, says="At last.", holds_after=2)
    staging = Staging(wired=True, limits={"max_calls": 1})
    async with harness_world(root, model, (*scenes, block), staging) as world:
        wire = world.wire
        assert wire is not None
        await submit(world, program, model)
        key = await world.facts.start(_OTHER)
        blocking = asyncio.create_task(_call(wire.url, key, _OTHERS_CUE))
        await world.play.until_held(_OTHERS_CUE)
        mine = len(wire.said)
        await world.order()

        async def refused() -> bool:
            return any(call.status is not None for call in wire.calls[1:])

        await until(refused, 120.0)
        await tell_engine(world.engines[0].url, "continue_generation")
        assert await blocking == 200
        outcome = await world.outcome()
        assert_played(outcome, world.play, lost={_OTHERS_CUE: 1})
        return outcome, [each for each in wire.said[mine:] if each.is_call]


def assert_moved(outcome: Outcome) -> None:
    """One call went on at cell 1 with the HELD_TOKENS that cell 0 had sampled; no fork."""
    assert outcome.forks == []
    assert {event.tokens_kept for event in outcome.rerouted} == {HELD_TOKENS}
    [call] = {event.call for event in outcome.rerouted}
    [cut] = [each for each in outcome.calls if each.call == call]
    assert [span.cell for span in cut.spans] == [0, 1]
    assert cut.spans[0].end == HELD_TOKENS


def assert_published(outcome: Outcome) -> None:
    """One call has tokens of two versions, the others before it of one, those after of the next."""
    assert outcome.forks == []
    versions = [[span.version for span in call.spans] for call in outcome.calls]
    assert versions == [[0], [0, 1], [1]]
    assert outcome.calls[1].spans[0].end == HELD_TOKENS
    assert outcome.rerouted == []


def assert_played(outcome: Outcome, play: Play, *, lost: Mapping[str, int] | None = None) -> None:
    """lost: as `assert_recorded_whole` takes it."""
    assert not play.surprises, play.surprises[0]
    assert outcome.end.reason == "completed", outcome.logs
    assert outcome.end.exit_code == 0
    assert outcome.reward == 1.0
    assert_recorded_whole(outcome, play, lost=lost)


async def submit(world: HarnessWorld, program: Program, model: Path, **job: Any) -> None:
    """The job with the one task. job: as `HarnessWorld.submit` takes it."""
    await world.submit(program.name, model, instruction=INSTRUCTION, test_sh=TEST_SH, **job)


async def _call(url: str, key: str, text: str) -> int:
    """One chat completion; its status."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(trust_env=False, headers=headers) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        await answer.read()
        return answer.status
