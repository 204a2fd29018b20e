"""One trainer in this very process, driven by its commands as an agent drives it, and looked into.
As `trainer_in_process`: in a process of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.contracts.job import ObjectiveSection
from gyre.contracts.training_job import OptimizerSection
from gyre.core.microstep import MicroStep
from gyre.testkit.trainer_in_process import start_world
from gyre.testkit.training import make_executions, make_micro_step

if TYPE_CHECKING:
    from torch import Tensor

    from gyre.cell_agent.trainer.commands import TrainerCommands

# Of every update: small beside the weights, so that half precision loses some of them.
LR = 1e-4


def make(model_path: Path, dtype: str, *, device: str = "cpu", **launch: Any) -> TrainerCommands:
    """Configured, in a world of one, with the model's own weights as version 0."""
    import torch.distributed

    from gyre.cell_agent.trainer.commands import TrainerCommands

    if not torch.distributed.is_initialized():
        start_world()
    told = TrainerLaunch(cell=0, model_path=model_path, dtype=dtype, **launch)
    made = TrainerCommands(told, torch.device(device))
    made.run(
        "configure",
        {
            "job": "j",
            "objective": ObjectiveSection(clip_low=0.05, clip_high=20.0).model_dump(),
            "optimizer": OptimizerSection(lr=LR).model_dump(),
        },
    )
    made.run(
        "form_world",
        {"epoch": 0, "rank": 0, "size": 1, "store_port": 1, "timeout_s": 5.0},
    )
    made.run("load_weights", {"path": model_path, "version": 0, "lineage": 1})
    return made


def some_step(version: int) -> MicroStep:
    executions = make_executions(random.Random(version), count=4, vocab_size=512)
    return make_micro_step(executions, batch=f"b{version}", index=0, normalizer=4)


def accumulate(trainer: TrainerCommands, version: int, directory: Path) -> dict[str, Any]:
    trainer.run("begin_batch", {"batch": f"b{version}", "version": version})
    path = directory / f"{version}.step"
    path.write_bytes(encode_microstep(some_step(version)))
    trainer.run("submit_step", {"source": str(path)})
    report: dict[str, Any] = trainer.run("flush_steps", {})["reports"][-1]
    return report


def update(trainer: TrainerCommands, version: int, directory: Path) -> dict[str, Any]:
    accumulate(trainer, version, directory)
    return trainer.run("finish_batch", {"members": [0], "epoch": 0, "final": True})


def save(trainer: TrainerCommands, directory: Path, **arguments: Any) -> dict[str, Any]:
    return trainer.run("save_checkpoint", {"directory": directory, **arguments})


def everything(trainer: TrainerCommands) -> dict[str, Tensor]:
    """Copies of parameters, masters and moments."""
    held = {name: value.detach().clone() for name, value in trainer.trainer.parameters.items()}
    state = trainer.trainer.optimizer_state()
    assert state is not None
    for name, values in state["parameters"].items():
        held |= {f"{name} {key}": value for key, value in values.items()}
    return held


def assert_identical(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    import torch

    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def refusal(trainer: TrainerCommands, command: str, **arguments: Any) -> tuple[str, str]:
    """Its kind and its words. Raises AssertionError: there was none."""
    from gyre.cell_agent.trainer.errors import TrainerError

    try:
        trainer.run(command, arguments)
    except TrainerError as error:
        return error.kind, str(error)
    raise AssertionError(f"{command} was not refused")
