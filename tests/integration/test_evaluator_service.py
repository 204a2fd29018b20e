"""The evaluator over a log in memory, with real workspaces, blobs and scorer processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import TerminationReason
from gyre.contracts.events.scheduling import (
    ExecutionsCancelled,
    GroupDropped,
    SurplusCancelled,
)
from gyre.contracts.events.scores import (
    Evaluated,
    EvaluationFailed,
    ExecutionExcluded,
    PlaceholderScored,
)
from gyre.evaluator.bootstrap import build
from gyre.evaluator.settings import EvaluatorSettings
from gyre.evaluator.snapshot import extract
from gyre.testkit.execution_world import JOB, ExecutionWorld, until

TEST_SH = """#!/bin/sh
if [ "$(cat answer.txt 2>/dev/null)" = 7 ]; then reward=1; else reward=0; fi
echo $reward > "$LOGS_DIR/verifier/reward.txt"
"""
BREAKS_ONCE = """#!/bin/sh
if mkdir "{flag}" 2>/dev/null; then exit 9; fi
echo 0.5 > "$LOGS_DIR/verifier/reward.txt"
"""


class World(ExecutionWorld):
    """An execution's world with an evaluator in it."""

    def __init__(self, root: Path, *, max_artifact_bytes: int = 1_000_000) -> None:
        super().__init__(root, MemoryEventLog())
        self.settings = EvaluatorSettings(
            nats_url="nats://nowhere",
            database_url="postgresql://nowhere",
            home=self.home,
            key_secret="s",  # type: ignore[arg-type]
            evaluator_max_artifact_bytes=max_artifact_bytes,
        )

    @asynccontextmanager
    async def evaluator(self) -> AsyncIterator[None]:
        """An evaluator that runs meanwhile; its errors are the test's."""
        ready = asyncio.Event()
        task = asyncio.create_task(build(self.settings, self.log, SystemClock()).run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        try:
            yield
        finally:
            waiting.cancel()
            task.cancel()
            results = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError), results[0]

    async def final(self, execution: str) -> Body:
        """The execution's last score event, once it is none that is followed by another."""

        async def ended() -> bool:
            scores = await self.scores(execution)
            return bool(scores) and not isinstance(scores[-1], EvaluationFailed)

        await until(ended)
        return (await self.scores(execution))[-1]


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.add_task("train", "sum", TEST_SH)
    made.add_task("heldout", "sum", 'echo 0.75 > "$LOGS_DIR/verifier/reward.txt"')
    made.add_task("train", "fragile", BREAKS_ONCE.format(flag=tmp_path / "flag"))
    made.add_task("train", "broken", "exit 1")
    await made.submit(evaluation={"scorer_timeout_s": 5, "max_tries": 2})
    return made


@pytest.mark.parametrize("reason", ["completed", "failed", "timeout"])
async def test_the_preserved_workspace_is_scored_whatever_the_end(
    world: World, reason: TerminationReason
) -> None:
    async with world.evaluator():
        workspace = await world.run("e0", "sum")
        (workspace / "answer.txt").write_text("7")
        await world.call("e0", "n1")
        await world.call("e0", "n2")
        await world.end("e0", reason)
        event = await world.final("e0")
    assert isinstance(event, Evaluated)
    assert (event.reward, event.attempt, event.branch) == (1.0, 1, "n2")
    copy = world.root / "copy"
    copy.mkdir()
    extract(DirectoryBlobStore(world.settings.blobs_dir).get(event.artifact), copy)
    assert (copy / "answer.txt").read_text() == "7"


async def test_nothing_is_scored_before_the_seal(world: World) -> None:
    async with world.evaluator():
        await world.run("e0", "sum")
        await world.end("e0", "completed", seal=False)
        (await world.run("e1", "sum")).joinpath("answer.txt").write_text("0")
        await world.end("e1", "completed")
        assert await world.final("e1")
        assert await world.scores("e0") == []
        await world.seal("e0")
        event = await world.final("e0")
    assert isinstance(event, Evaluated)
    assert event.reward == 0.0


async def test_heldout_groups_have_their_own_tasks(world: World) -> None:
    await world.dispatch("hb0", "sum", "h0", is_heldout=True)
    await world.run("h0", "sum", group="hb0")
    await world.end("h0", "completed")
    async with world.evaluator():
        event = await world.final("h0")
    assert isinstance(event, Evaluated)
    assert event.reward == 0.75


async def test_a_failing_scorer_is_tried_again_on_the_same_artifact(world: World) -> None:
    workspace = await world.run("e0", "fragile")
    (workspace / "a.txt").write_text("1")
    await world.end("e0", "completed")

    async def failed_once() -> bool:
        return len(await world.scores("e0")) >= 1

    async with world.evaluator():
        await until(failed_once)
        (workspace / "a.txt").write_text("changed since")
        event = await world.final("e0")
    first = (await world.scores("e0"))[0]
    assert isinstance(first, EvaluationFailed)
    assert isinstance(event, Evaluated)
    assert (event.artifact, event.evaluation, event.reward) == (first.artifact, "e0-t2", 0.5)


async def test_a_scorer_that_keeps_failing_excludes_the_execution(world: World) -> None:
    await world.run("e0", "broken")
    await world.end("e0", "completed")
    async with world.evaluator():
        event = await world.final("e0")
    failures = (await world.scores("e0"))[:-1]
    assert [failure.TYPE for failure in failures] == ["evaluation_failed"] * 2
    assert event == ExecutionExcluded(
        execution="e0",
        reason="no valid score in 2 tries: test.sh left no reward file and exited with 1",
    )


async def test_no_evaluable_work_makes_a_placeholder(world: World) -> None:
    async with world.evaluator():
        await world.run("e0", "sum")
        await world.end("e0", "infrastructure")
        assert isinstance(await world.final("e0"), PlaceholderScored)
        # The policy worked in the first of two attempts: that one's work is scored.
        (await world.run("e1", "sum")).joinpath("answer.txt").write_text("7")
        await world.call("e1", "n1")
        await world.run("e1", "sum", attempt=2)
        await world.end("e1", "infrastructure", attempt=2)
        event = await world.final("e1")
    assert isinstance(event, Evaluated)
    assert (event.attempt, event.reward) == (1, 1.0)


async def test_cancelled_executions_are_excluded(world: World) -> None:
    cancelled = ExecutionsCancelled(
        based_on=1, now=0, queued=("q0",), running=("e0",), reason="user"
    )
    async with world.evaluator():
        await world.run("e0", "sum")
        await world.say(subjects.sched(JOB), cancelled)
        assert await world.final("q0") == ExecutionExcluded(execution="q0", reason="cancelled")
        assert await world.scores("e0") == []
        await world.end("e0", "cancelled")
        assert await world.final("e0") == ExecutionExcluded(execution="e0", reason="cancelled")


async def test_what_the_scheduler_ended_is_not_scored_and_what_ended_by_itself_is(
    world: World,
) -> None:
    """A surplus execution may end by itself before the runner reaches it: it has a score then,
    which its group takes no notice of."""
    surplus = SurplusCancelled(based_on=1, now=0, group="g", queued=("q0",), running=("e0", "e1"))
    dropped = GroupDropped(
        based_on=1, now=0, group="h", staleness=4, queued=("q1",), running=("e2",)
    )
    async with world.evaluator():
        for execution in ("e0", "e1", "e2"):
            (await world.run(execution, "sum")).joinpath("answer.txt").write_text("7")
        await world.say(subjects.sched(JOB), surplus)
        await world.say(subjects.sched(JOB), dropped)
        await world.end("e0", "surplus")
        await world.end("e1", "completed")
        await world.end("e2", "dropped")
        assert isinstance(await world.final("q0"), ExecutionExcluded)
        assert isinstance(await world.final("q1"), ExecutionExcluded)
        assert await world.final("e0") == ExecutionExcluded(execution="e0", reason="surplus")
        assert isinstance(await world.final("e1"), Evaluated)
        assert await world.final("e2") == ExecutionExcluded(execution="e2", reason="dropped")


async def test_a_workspace_over_the_limit_is_excluded_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, max_artifact_bytes=100)
    world.add_task("train", "sum", TEST_SH)
    await world.submit()
    (await world.run("e0", "sum")).joinpath("big").write_bytes(b"x" * 200)
    await world.end("e0", "completed")
    async with world.evaluator():
        event = await world.final("e0")
    assert event == ExecutionExcluded(execution="e0", reason="workspace: more than 100 bytes")


async def test_a_second_life_repeats_nothing(world: World) -> None:
    for index in range(6):
        (await world.run(f"e{index}", "sum")).joinpath("answer.txt").write_text("7")
        await world.end(f"e{index}", "completed")
    async with world.evaluator():
        await world.final("e0")
    # Cancelled in the middle; the next one does what is left.
    async with world.evaluator():
        for index in range(6):
            assert isinstance(await world.final(f"e{index}"), Evaluated)
    async with world.evaluator():
        await world.run("e6", "sum")
        await world.end("e6", "completed")
        await world.final("e6")
    for index in range(7):
        assert len(await world.scores(f"e{index}")) == 1
