"""A trainer told to emulate a speed: a micro-step takes its tokens' time, and dies at once."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.trainer.client import TrainerGone, TrainerProcess
from gyre.cell_agent.trainer.launch import TrainerLaunch
from gyre.contracts.job import ObjectiveSection, OptimizerSection
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.training import make_executions, make_micro_step

CALL_S = 120.0
SECTIONS: dict[str, Any] = {
    "job": "j",
    "objective": ObjectiveSection().model_dump(),
    "optimizer": OptimizerSection().model_dump(),
}


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_micro_step_takes_its_tokens_at_the_emulated_speed_and_can_be_killed(
    tmp_path: Path,
) -> None:
    model = make_tiny_model(tmp_path / "model")
    executions = make_executions(random.Random(1), count=4, vocab_size=512)
    step = make_micro_step(executions, batch="b", index=0, normalizer=4)
    path = tmp_path / "step.npz"
    path.write_bytes(encode_microstep(step))
    launch = TrainerLaunch(cell=0, model_path=model, tokens_per_s=step.num_tokens / 1.5)
    trainer = TrainerProcess(launch)
    await trainer.start(CALL_S)
    await trainer.call("configure", CALL_S, **SECTIONS)
    await trainer.call("load_weights", CALL_S, path=model, version=0, lineage=0)
    await trainer.call("begin_batch", CALL_S, batch="b", version=0)
    answer = await trainer.call("micro_step", CALL_S, path=path)

    assert answer["seconds"] >= 1.5

    await trainer.call("begin_batch", CALL_S, batch="b", version=0)
    second = asyncio.create_task(trainer.call("micro_step", CALL_S, path=path))
    await asyncio.sleep(0.1)
    started = time.perf_counter()
    trainer.kill()
    assert await trainer.wait() < 0
    with pytest.raises(TrainerGone):
        await second
    assert time.perf_counter() - started < 1.4
