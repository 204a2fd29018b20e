"""One trainer process: checkpoints resume exactly, refusals are classified and cost nothing."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import safetensors.torch

from gyre.adapters.blobs import digest_of
from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.cell_agent.trainer.process.client import TrainerProcess, TrainerRefused
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.cell_agent.weights.base import WEIGHTS_KEY
from gyre.contracts.job import ObjectiveSection
from gyre.contracts.training_job import OptimizerSection
from gyre.core.microstep import MicroStep
from gyre.testkit.nats_server import free_port
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_calls import micro_step, stopped
from gyre.testkit.training import make_executions, make_micro_step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Generous: several trainers import torch at once, on whatever machine this is.
CALL_S = 120.0
# So wide that no execution of a random policy is masked.
OBJECTIVE = ObjectiveSection(clip_low=0.05, clip_high=20.0).model_dump()
SECTIONS: dict[str, Any] = {
    "job": "j",
    "objective": OBJECTIVE,
    "optimizer": OptimizerSection(lr=1e-3, warmup_steps=4).model_dump(),
}


async def start(model: Path, **environment: str) -> TrainerProcess:
    told = {WEIGHTS_KEY: "of the job", **environment}
    trainer = TrainerProcess(TrainerLaunch(cell=0, model_path=model), environment=told)
    await trainer.start(CALL_S)
    await trainer.call("configure", CALL_S, **SECTIONS)
    await trainer.call("form_world", CALL_S, epoch=0, rank=0, size=1, timeout_s=5.0)
    return trainer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrainerProcess]:
    model = make_tiny_model(tmp_path_factory.mktemp("process") / "model")
    started = await start(model)
    yield started
    assert await stopped(started) == 0


@pytest_asyncio.fixture(loop_scope="module")
async def trainer(shared: TrainerProcess, model: Path) -> TrainerProcess:
    await shared.call("restore", CALL_S)
    await shared.call("drop_accumulation", CALL_S)
    await shared.call("load_weights", CALL_S, path=model, version=0, lineage=0)
    return shared


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "model")


def some_step(batch: str, seed: int) -> MicroStep:
    executions = make_executions(random.Random(seed), count=4, vocab_size=512)
    return make_micro_step(executions, batch=batch, index=0, normalizer=4)


def stored(step: MicroStep, directory: Path) -> Path:
    path = directory / f"{step.batch}-{step.index}.npz"
    path.write_bytes(encode_microstep(step))
    return path


async def one_update(trainer: TrainerProcess, version: int, directory: Path) -> dict[str, Any]:
    batch = f"b{version}"
    await trainer.call("begin_batch", CALL_S, batch=batch, version=version)
    path = stored(some_step(batch, seed=version), directory)
    await micro_step(trainer, path, CALL_S)
    return await trainer.call("finish_batch", CALL_S, members=[0], epoch=0, final=True)


@pytest.mark.slow
async def test_a_body_that_cannot_be_had_now_costs_nothing_of_what_is_accumulated(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    """Slow: a fetch waits for its server to come back."""
    steps = [replace(some_step("b0", seed), index=seed) for seed in range(2)]
    await trainer.call("begin_batch", CALL_S, batch="b0", version=0)
    await trainer.call("submit_step", CALL_S, source=stored(steps[0], tmp_path))
    away = f"http://127.0.0.1:{free_port()}/blobs/{'0' * 64}"
    with pytest.raises(TrainerRefused, match=r"body_unavailable.*refused"):
        await trainer.call("submit_step", CALL_S, source=away, digest="0" * 64)
    await trainer.call("submit_step", CALL_S, source=stored(steps[1], tmp_path))
    assert (await trainer.call("flush_steps", CALL_S))["trained"] == [0, 1]


async def test_a_checkpoint_resumes_to_the_identical_next_step(
    trainer: TrainerProcess, model: Path, tmp_path: Path
) -> None:
    rates = [(await one_update(trainer, version, tmp_path))["lr"] for version in range(2)]
    saved = await trainer.call("save_checkpoint", CALL_S, directory=tmp_path / "v2")
    rates.append((await one_update(trainer, 2, tmp_path))["lr"])
    expected = await trainer.call("checksum", CALL_S)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3])

    resumed = await start(model)
    loaded = await resumed.call("load_checkpoint", CALL_S, directory=tmp_path / "v2", lineage=1)
    assert loaded == {"num_updates": 2, "version": 2, "lineage": 1, "checksum": saved["sha256"]}
    await one_update(resumed, 2, tmp_path)
    found = await resumed.call("checksum", CALL_S)
    assert await stopped(resumed) == 0
    assert found == expected | {"lineage": 1}
    assert found["checksum"] != saved["sha256"]


async def test_a_checkpoint_is_what_the_engine_serves(
    trainer: TrainerProcess, model: Path, tmp_path: Path
) -> None:
    await one_update(trainer, 0, tmp_path)
    saved = await trainer.call("save_checkpoint", CALL_S, directory=tmp_path / "v1")
    assert (saved["version"], saved["lineage"]) == (1, 0)
    assert checksum(read_checkpoint(tmp_path / "v1")) == saved["sha256"]
    assert (await trainer.call("checksum", CALL_S))["checksum"] == saved["sha256"]
    assert_same_file(tmp_path / "v1", model, "tokenizer.json")
    assert no_drafts_in(tmp_path)
    # A retried command finds the first one's work; another version does not overwrite it.
    again = await trainer.call("save_checkpoint", CALL_S, directory=tmp_path / "v1")
    assert again == saved
    await one_update(trainer, 1, tmp_path)
    with pytest.raises(TrainerRefused, match="already there"):
        await trainer.call("save_checkpoint", CALL_S, directory=tmp_path / "v1")


async def test_a_damaged_checkpoint_is_refused_and_nothing_is_loaded(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    await trainer.call("save_checkpoint", CALL_S, directory=tmp_path / "v0")
    before = await trainer.call("checksum", CALL_S)
    stored_manifest(tmp_path / "v0", sha256="0" * 64)
    with pytest.raises(TrainerRefused) as refusal:
        await trainer.call("load_checkpoint", CALL_S, directory=tmp_path / "v0")
    assert refusal.value.kind == "checkpoint_error"
    (tmp_path / "v0" / "manifest.json").unlink()
    with pytest.raises(TrainerRefused, match=r"manifest\.json"):
        await trainer.call("load_checkpoint", CALL_S, directory=tmp_path / "v0")
    assert await trainer.call("checksum", CALL_S) == before


async def test_learning_rate_zero_moves_nothing(trainer: TrainerProcess, tmp_path: Path) -> None:
    before = await trainer.call("checksum", CALL_S)
    still = OptimizerSection(lr=0.0).model_dump()
    await trainer.call("configure", CALL_S, **SECTIONS | {"optimizer": still})
    finished = await one_update(trainer, 0, tmp_path)
    after = await trainer.call("checksum", CALL_S)
    await trainer.call("configure", CALL_S, **SECTIONS)
    assert finished["version"] == 1
    assert finished["grad_norm"] > 0
    assert after == before | {"version": 1}


async def test_offloaded_buffers_come_back_empty_and_usable(
    trainer: TrainerProcess, model: Path, tmp_path: Path
) -> None:
    await one_update(trainer, 0, tmp_path)
    await trainer.call("offload", CALL_S, directory=tmp_path / "parked")
    with pytest.raises(TrainerRefused, match="restore first"):
        await trainer.call("begin_batch", CALL_S, batch="b1", version=1)
    await trainer.call("restore", CALL_S)
    finished = await one_update(trainer, 1, tmp_path)
    switched = await trainer.call("checksum", CALL_S)

    await trainer.call("load_weights", CALL_S, path=model, version=0, lineage=0)
    await one_update(trainer, 0, tmp_path)
    straight = await one_update(trainer, 1, tmp_path)
    assert straight["grad_norm"] == finished["grad_norm"]
    assert await trainer.call("checksum", CALL_S) == switched


async def test_refusals_are_classified_and_the_trainer_lives(
    trainer: TrainerProcess, model: Path, tmp_path: Path
) -> None:
    path = stored(some_step("b0", seed=0), tmp_path)
    garbage = tmp_path / "garbage.npz"
    garbage.write_bytes(b"no micro-step")
    early: list[tuple[str, dict[str, Any], str]] = [
        ("submit_step", {"source": path}, "wrong_state"),
        ("finish_batch", {"members": [0], "epoch": 0, "final": True}, "wrong_state"),
        ("begin_batch", {"batch": "b0", "version": 7}, "wrong_version"),
        ("begin_batch", {"batch": "b0"}, "bad_command"),
        ("begin_batch", {"batch": "b0", "version": 0, "extra": 1}, "bad_command"),
        ("train_harder", {}, "bad_command"),
        ("load_weights", {"path": tmp_path, "version": 0, "lineage": 0}, "bad_model"),
        (
            "pull_weights",
            {"host": "127.0.0.1", "port": 1, "version": 0, "lineage": 0},
            "weights_unavailable",
        ),
        ("configure", {"job": "j", "objective": {}, "optimizer": {}}, "bad_command"),
        ("configure", SECTIONS | {"objective": OBJECTIVE | {"name": "ppo"}}, "bad_command"),
        ("configure", SECTIONS | {"objective": OBJECTIVE | {"max_mismatch": -1}}, "bad_command"),
    ]
    within: list[tuple[str, dict[str, Any], str]] = [
        ("submit_step", {"source": garbage}, "bad_micro_step"),
        ("submit_step", {"source": tmp_path / "absent"}, "bad_micro_step"),
        ("submit_step", {"source": path, "digest": "0" * 64}, "bad_micro_step"),
        ("submit_step", {"source": stored(some_step("other", seed=0), tmp_path)}, "wrong_state"),
        ("load_weights", {"path": model, "version": 1, "lineage": 0}, "wrong_state"),
        ("offload", {"directory": tmp_path}, "wrong_state"),
        ("finish_batch", {"members": [0], "epoch": 9, "final": True}, "wrong_state"),
    ]
    assert await kinds_of(trainer, early) == [kind for _, _, kind in early]
    await trainer.call("begin_batch", CALL_S, batch="b0", version=0)
    assert await kinds_of(trainer, within) == [kind for _, _, kind in within]
    digest = digest_of(path.read_bytes())
    await micro_step(trainer, path, CALL_S, digest=digest)
    assert await kinds_of(trainer, [("submit_step", {"source": path}, "")]) == ["wrong_state"]
    status = await trainer.call("status", CALL_S)
    assert status["accumulated"] == [0]
    assert status["pid"] == trainer.pid


async def test_a_token_outside_the_vocabulary_is_refused(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    executions = make_executions(random.Random(0), count=2, vocab_size=5000)
    step = make_micro_step(executions, batch="b0", index=0, normalizer=2)
    await trainer.call("begin_batch", CALL_S, batch="b0", version=0)
    with pytest.raises(TrainerRefused, match="vocabulary of 512"):
        await micro_step(trainer, stored(step, tmp_path), CALL_S)


async def test_a_loss_that_is_not_finite_skips_the_update_and_not_the_trainer(
    trainer: TrainerProcess, model: Path, tmp_path: Path
) -> None:
    weights = read_weights(model)
    weights["model.norm.weight"][0] = float("nan")
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    await trainer.call("load_weights", CALL_S, path=tmp_path, version=0, lineage=0)
    before = await trainer.call("checksum", CALL_S)
    await trainer.call("begin_batch", CALL_S, batch="b0", version=0)
    answer = await micro_step(trainer, stored(some_step("b0", 0), tmp_path), CALL_S)
    assert "log-probabilities" in answer["problem"]
    assert set(answer["ratios"].values()) == {None}
    finished = await trainer.call("finish_batch", CALL_S, members=[0], epoch=0, final=True)
    assert (finished["skipped"], finished["version"]) == (True, 1)
    assert finished["skip_reason"].startswith("non_finite_loss: micro-step 0: ")
    assert await trainer.call("checksum", CALL_S) == before | {"version": 1}


async def test_a_batch_of_placeholders_updates_with_a_zero_gradient(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    step = MicroStep(
        batch="b0",
        index=0,
        row_tokens=8,
        window_rows=1,
        normalizer=4,
        executions=(),
        rows=(),
    )
    await trainer.call("begin_batch", CALL_S, batch="b0", version=0)
    await micro_step(trainer, stored(step, tmp_path), CALL_S)
    finished = await trainer.call("finish_batch", CALL_S, members=[0], epoch=0, final=True)
    assert (finished["grad_norm"], finished["skipped"], finished["version"]) == (0.0, False, 1)


def assert_same_file(one: Path, other: Path, name: str) -> None:
    assert (one / name).read_bytes() == (other / name).read_bytes()


def no_drafts_in(directory: Path) -> bool:
    return not list(directory.glob(".*"))


def stored_manifest(directory: Path, **changes: str) -> None:
    manifest = directory / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


async def kinds_of(
    trainer: TrainerProcess, commands: list[tuple[str, dict[str, Any], str]]
) -> list[str]:
    found = []
    for name, arguments, _ in commands:
        try:
            await trainer.call(name, CALL_S, **arguments)
            found.append("no refusal")
        except TrainerRefused as refusal:
            found.append(refusal.kind)
    return found
