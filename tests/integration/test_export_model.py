"""`gyre export-model`: a trained model as transformers loads it, the engine serves it, and the
trainer meant it."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.process.client import TrainerProcess
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.cli import app
from gyre.contracts.job import ObjectiveSection
from gyre.contracts.training_job import OptimizerSection
from gyre.core.microstep import MicroStep, Row, TreeBlock
from gyre.testkit.command_line import Ended, one_line, run_command
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_calls import stopped
from gyre.testkit.training import make_executions, make_micro_step

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CALL_S = 120.0
JOB = "small-1"


def some_step(version: int) -> MicroStep:
    executions = make_executions(random.Random(version), count=4, vocab_size=512)
    return make_micro_step(executions, batch=f"b{version}", index=0, normalizer=4)


def gyre(*arguments: str | Path, home: Path) -> Ended:
    return run_command(
        app, tuple(map(str, arguments)), env={"GYRE_HOME": str(home / "stack")}, home=home
    )


def mapped(step: MicroStep, model: PreTrainedModel) -> MicroStep:
    """The same step, with what transformers says of its targets for the behaviour policy's."""
    temperatures = [info.temperature for info in step.executions]
    rows = tuple(
        Row(blocks=tuple(told(block, model, temperatures[block.execution]) for block in row.blocks))
        for row in step.rows
    )
    return replace(step, rows=rows)


def told(block: TreeBlock, model: PreTrainedModel, temperature: float) -> TreeBlock:
    import torch

    tokens = torch.tensor(block.token_ids)
    with torch.no_grad():
        logits = model(tokens[None]).logits[0].double() / temperature
    logprobs = torch.log_softmax(logits, -1)
    places = block.target_positions
    found = tuple(float(logprobs[place - 1, block.token_ids[place]]) for place in places)
    return replace(block, behaviour_logprobs=found)


async def train(trainer: TrainerProcess, step: MicroStep, version: int, work: Path) -> Any:
    path = work / f"{version}.step"
    path.write_bytes(encode_microstep(step))
    await trainer.call("begin_batch", CALL_S, batch=step.batch, version=version)
    await trainer.call("submit_step", CALL_S, source=path)
    return await trainer.call("finish_batch", CALL_S, members=[0], epoch=0, final=True)


@pytest.mark.timeout(300)
async def test_an_exported_model_is_the_trainers_for_transformers_and_for_the_engine(
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model_path = make_tiny_model(tmp_path / "model")
    checkpoints = tmp_path / "stack" / "checkpoints" / JOB
    trainer = TrainerProcess(TrainerLaunch(cell=0, model_path=model_path))
    await trainer.start(CALL_S)
    await trainer.call(
        "configure",
        CALL_S,
        job="j",
        objective=ObjectiveSection(clip_low=0.01, clip_high=100.0).model_dump(),
        optimizer=OptimizerSection(lr=1e-2).model_dump(),
    )
    await trainer.call("form_world", CALL_S, epoch=0, rank=0, size=1, store_port=1, timeout_s=5.0)
    await trainer.call("load_weights", CALL_S, path=model_path, version=0, lineage=1)
    for version in range(2):
        await train(trainer, some_step(version), version, tmp_path)
        directory = checkpoints / f"l1-v{version + 1:05d}"
        saved = await trainer.call("save_checkpoint", CALL_S, directory=directory)

    done = gyre("export-model", JOB, "out", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out: version 2, from ")
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert names.isdisjoint({"manifest.json", "trainer_state"})
    assert checksum(read_checkpoint(out)) == saved["sha256"]
    assert AutoTokenizer.from_pretrained(out).encode("hello")

    exported = AutoModelForCausalLM.from_pretrained(out)
    answer = await train(trainer, mapped(some_step(2), exported), 2, tmp_path)
    assert answer["statistics"]["max_abs_logprob_diff"] < 1e-4
    assert await stopped(trainer, CALL_S) == 0

    untrained = AutoModelForCausalLM.from_pretrained(model_path)
    (block, *_) = some_step(2).blocks
    assert told(block, untrained, 1.0) != told(block, exported, 1.0)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The files of a checkpoint that the command looks at."""
    checkpoint = tmp_path / "stack" / "checkpoints" / JOB / "l1-v00003"
    (checkpoint / "trainer_state").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "config.json").write_text("{}")
    digest = hashlib.sha256(b"weights").hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps({"version": 3, "file_sha256": digest}))
    return checkpoint


def copied(stored: Path, name: str) -> Path:
    return Path(shutil.copytree(stored, stored.with_name(name)))


def test_a_jobs_newest_checkpoint_is_that_of_its_last_lineage(stored: Path, tmp_path: Path) -> None:
    for name in ("l1-v00012", "l2-v00004", ".l2-v00005.77"):
        copied(stored, name)
    done = gyre("export-model", JOB, tmp_path / "out", home=tmp_path)
    assert done.stdout.endswith("l2-v00004\n")


def test_a_checkpoint_may_be_named_by_its_path_and_an_empty_directory_taken(
    stored: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    done = gyre("export-model", stored, tmp_path / "out", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def refused(done: Ended) -> str:
    assert done.returncode == 2
    return one_line(done)


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    stored: Path, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    damaged, strange = copied(stored, "l1-v00001"), copied(stored, "l1-v00002")
    (damaged / "model.safetensors").write_bytes(b"wEights")
    (strange / "manifest.json").write_text("[]")
    entries = {path.name for path in tmp_path.iterdir()}
    for arguments, words in (
        ((JOB, full), "name a new or an empty directory"),
        ((JOB, full / "mine"), "name a new or an empty directory"),
        (("other-1", "out"), "job other-1 has no checkpoint in"),
        (("no/such", "out"), "is no checkpoint: it has no manifest.json"),
        (("two words", "out"), "is neither a job's id nor a checkpoint"),
        ((damaged, "out"), "is damaged: it does not match manifest.json"),
        ((strange, "out"), "is no manifest of a checkpoint"),
    ):
        assert words in refused(gyre("export-model", *arguments, home=tmp_path)), arguments
        assert {path.name for path in tmp_path.iterdir()} == entries
