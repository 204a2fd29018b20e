"""A trainer told to emulate a speed: a micro-step takes its tokens' time, the next one is taken in
meanwhile, and it dies at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerProcess, TrainerRefused
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.contracts.job import ObjectiveSection
from gyre.contracts.training_job import OptimizerSection
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_calls import micro_step, stopped
from gyre.testkit.training import make_executions, make_micro_step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

CALL_S = 120.0
STEP_S = 1.5
SECTIONS: dict[str, Any] = {
    "job": "j",
    "objective": ObjectiveSection().model_dump(),
    "optimizer": OptimizerSection().model_dump(),
}


@dataclass(frozen=True, kw_only=True)
class Slow:
    """steps: paths of two micro-steps, each of which takes STEP_S."""

    trainer: TrainerProcess
    model: Path
    steps: tuple[Path, Path]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slow]:
    work = tmp_path_factory.mktemp("slow")
    model = make_tiny_model(work / "model")
    executions = make_executions(random.Random(1), count=4, vocab_size=512)
    step = make_micro_step(executions, batch="b", index=0, normalizer=4)
    paths = (work / "0", work / "1")
    for index, path in enumerate(paths):
        path.write_bytes(encode_microstep(replace(step, index=index)))
    launch = TrainerLaunch(cell=0, model_path=model, tokens_per_s=step.num_tokens / STEP_S)
    trainer = TrainerProcess(launch)
    await trainer.start(CALL_S)
    await trainer.call("configure", CALL_S, **SECTIONS)
    await trainer.call("load_weights", CALL_S, path=model, version=0, lineage=0)
    await trainer.call("form_world", CALL_S, epoch=1, rank=0, size=1, timeout_s=60.0)
    yield Slow(trainer=trainer, model=model, steps=paths)
    await stopped(trainer)


async def test_a_micro_step_takes_its_tokens_at_the_emulated_speed(slow: Slow) -> None:
    await slow.trainer.call("begin_batch", CALL_S, batch="b", version=0)
    started = time.perf_counter()
    await micro_step(slow.trainer, slow.steps[0], CALL_S)
    assert time.perf_counter() - started >= STEP_S


async def test_one_is_taken_in_while_the_one_before_is_computed(slow: Slow) -> None:
    """And no more: who claims ahead of that keeps work from other cells."""
    trainer, (first, second) = slow.trainer, slow.steps
    await trainer.call("begin_batch", CALL_S, batch="b", version=0)
    started = time.perf_counter()
    await trainer.call("submit_step", CALL_S, source=first)
    taken_in = time.perf_counter() - started
    with pytest.raises(TrainerRefused, match="wrong_state"):
        await trainer.call("submit_step", CALL_S, source=first)
    await trainer.call("submit_step", CALL_S, source=second)
    begun = time.perf_counter() - started
    finished = await trainer.call("finish_batch", CALL_S, members=[0], epoch=1, final=True)
    done = time.perf_counter() - started

    # Had it been answered when it was computed, one step's time would be left.
    assert done - taken_in > 1.5 * STEP_S
    assert begun >= STEP_S
    assert done >= 2 * STEP_S
    assert finished["num_micro_steps"] == 2
    (times,) = finished["statistics"]["cell_times"]
    assert 2 * STEP_S <= times["busy_s"] <= done
    assert times["idle_s"] >= 0


async def test_a_flush_waits_for_what_is_computed_and_tells_of_it(slow: Slow) -> None:
    trainer = slow.trainer
    await trainer.call("load_weights", CALL_S, path=slow.model, version=0, lineage=0)
    await trainer.call("begin_batch", CALL_S, batch="b", version=0)
    for path in slow.steps:
        await trainer.call("submit_step", CALL_S, source=path)
    flushed = await trainer.call("flush_steps", CALL_S)
    again = await trainer.call("flush_steps", CALL_S)
    assert flushed["trained"] == again["trained"] == [0, 1]
    assert [report["index"] for report in flushed["reports"]] == [0, 1]
    assert again["reports"] == []


async def test_a_trainer_dies_at_once_whatever_it_computes(slow: Slow) -> None:
    await slow.trainer.call("begin_batch", CALL_S, batch="b", version=0)
    await slow.trainer.call("submit_step", CALL_S, source=slow.steps[0])
    # Answered when its turn has come: now it is computed.
    started = time.perf_counter()
    waiting = asyncio.create_task(slow.trainer.call("flush_steps", CALL_S))
    await asyncio.sleep(0)  # it is sent: a task writes before it waits
    slow.trainer.kill()
    assert await slow.trainer.wait() < 0
    with pytest.raises(TrainerGone):
        await waiting
    assert time.perf_counter() - started < STEP_S
