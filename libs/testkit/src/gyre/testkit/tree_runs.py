"""Runs in files, for what the command line says of an execution's tree."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gyre.adapters.archive import Hider, write_archive
from gyre.adapters.blobs import MemoryBlobStore
from gyre.adapters.clock import ManualClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.groups import MicroStepEmitted, StreamClosed
from gyre.core.microstep import MicroStep
from gyre.testkit.command_line import Ended, run_command
from gyre.testkit.execution_world import until
from gyre.testkit.trajectory_world import Caller, World, calls_of, small_spec
from gyre.trajectory.handlers import Trajectories

JOB, BATCH, SEED = "job", "l1-s0000", 4
EXECUTIONS = [f"{JOB}-g{group:04d}-e{place}" for group in range(3) for place in range(4)]
REWARDS = (1.0, 0.0, 0.5, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A directory with runs in files. app: `gyre.cli.app`. trained: of each execution of the file
    `run` the target tokens that went to a trainer, sorted."""

    app: ModuleType
    home: Path
    trained: dict[str, list[int]]

    def gyre(self, *arguments: str) -> Ended:
        """The command, without a stack."""
        env = {"HOME": str(self.home), "GYRE_HOME": str(self.home / "stack")}
        return run_command(self.app, arguments, env=env, home=self.home)

    def tree(self, execution: str, file: str = "run") -> dict[str, Any]:
        """What `gyre tree --json` says."""
        ended = self.gyre("tree", execution, "--file", file, "--json")
        assert ended.returncode == 0, ended.stderr
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    def text(self, execution: str, file: str = "run", *options: str) -> str:
        """What `gyre tree` prints."""
        ended = self.gyre("tree", execution, "--file", file, *options)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


def trained_run(app: ModuleType, home: Path) -> Terminal:
    """One batch of three groups, through the trajectory service, as the file `run`. One trajectory
    an execution, and the first group's have a choice of four."""

    async def make() -> dict[str, list[int]]:
        journal, blobs = Journal(MemoryEventLog(), ManualClock()), MemoryBlobStore()
        spec = small_spec(admission={"max_trajectories": 1})
        world = World(journal, JOB, spec, seed=SEED)
        await world.submit()
        await world.dispatch(range(3))
        for execution, reward in zip(world.plan(0).executions, REWARDS, strict=True):
            for event in run_calls(execution):
                await world.say(subjects.calls(JOB, execution), event)
            await world.score(execution, reward)
        for number in (1, 2):
            await world.finish_group(number, REWARDS)
        await world.open_batch(BATCH)
        found = await _trained(journal, blobs, world)
        await _archive(journal, home / "run")
        return found

    return Terminal(app=app, home=home, trained=asyncio.run(make()))


def run_calls(execution: str) -> list[Body]:
    """The calls of an execution of the file `run`, its seal included."""
    if execution not in EXECUTIONS[:4]:
        return calls_of(execution, SEED)
    caller = Caller(execution, random.Random(execution))
    first = caller.call(None)
    for _ in range(4):
        caller.call(first)
    return [*caller.events, CallsSealed(execution=execution, num_calls=5, last_seq=0)]


def run_of(
    home: Path, events: Sequence[Body], *, scored: int | None = None, **admission: int
) -> str:
    """A new file with a run whose first execution has these calls; its name. scored: the attempt
    that has a reward. admission: fields of the job's section."""

    async def make() -> None:
        journal = Journal(MemoryEventLog(), ManualClock())
        world = World(journal, JOB, small_spec(admission=admission), seed=SEED)
        await world.submit()
        await world.dispatch(range(1))
        for event in events:
            await world.say(subjects.calls(JOB, EXECUTIONS[0]), event)
        if scored is not None:
            await world.score(EXECUTIONS[0], 0.25, attempt=scored)
        await _archive(journal, home / name)

    name = f"run-{len(list(home.iterdir()))}"
    asyncio.run(make())
    return name


async def _trained(journal: Journal, blobs: MemoryBlobStore, world: World) -> dict[str, list[int]]:
    """Runs the service until the batch is out, claiming as a cell does."""
    service = Trajectories(journal, blobs)
    running = asyncio.create_task(service.run(lambda: None))
    claimed = 0

    async def closed() -> bool:
        nonlocal claimed
        bodies = [fact.body async for fact in journal.read(Stream.FACTS)]
        for body in bodies:
            if isinstance(body, MicroStepEmitted) and body.index >= claimed:
                await world.claim(BATCH, body.index)
                claimed = body.index + 1
        return any(isinstance(body, StreamClosed) for body in bodies)

    await until(closed)
    running.cancel()
    [ended] = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended
    found: dict[str, list[int]] = {}
    async for fact in journal.read(Stream.FACTS):
        if isinstance(fact.body, MicroStepEmitted):
            _add_targets(found, decode_microstep(blobs.get(fact.body.digest)))
    return {execution: sorted(tokens) for execution, tokens in found.items()}


def _add_targets(found: dict[str, list[int]], step: MicroStep) -> None:
    for block in (block for row in step.rows for block in row.blocks):
        tokens = found.setdefault(step.executions[block.execution].execution, [])
        tokens += (block.token_ids[place] for place in block.target_positions)


async def _archive(journal: Journal, path: Path) -> None:
    await write_archive(
        path,
        job=JOB,
        release="0",
        facts=journal.read(Stream.FACTS),
        calls=journal.read(Stream.CALLS),
        hider=Hider(),
    )
