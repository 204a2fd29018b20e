"""The trainer on a device that is not the host, as far as a CPU can show.

To torch `cpu:0` is another device than `cpu`, so the trainer treats it as it does a GPU: the model
is made on the host, offloaded from the start, parked in what would be pinned memory, and a
micro-step's tensors are moved. And a device that computes nothing, `meta`, is where a tensor lands
that says no device: whatever then meets it fails.

`test_trainer_state_law.py` runs these in a process of their own, with `check_checkpoints.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from gyre.testkit.trainer_by_commands import (
    accumulate,
    assert_identical,
    everything,
    make,
    refusal,
    save,
    update,
)
from gyre.testkit.trainer_in_process import add_gradient, make_trainer
from gyre.testkit.training_trees import TreeShape, random_tree_step

pytestmark = pytest.mark.filterwarnings("ignore:::megatron.*")

ELSEWHERE = "cpu:0"
FACTORIES = frozenset(
    {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}
)


@pytest.fixture(scope="module")
def model_path() -> Path:
    return Path(os.environ["GYRE_CHECKED_MODEL"])


def test_until_it_is_restored_it_holds_nothing_there_and_loads_on_the_host(
    model_path: Path, tmp_path: Path
) -> None:
    here, there = make(model_path, "bfloat16"), make(model_path, "bfloat16", device=ELSEWHERE)
    update(here, 0, tmp_path)
    save(here, tmp_path / "l1-v00001")
    there.run("load_checkpoint", {"directory": tmp_path / "l1-v00001"})
    there.run("offload", {"directory": tmp_path})
    assert there.run("checksum", {}) == here.run("checksum", {})
    kind, words = refusal(there, "begin_batch", batch="b1", version=1)
    assert (kind, "restore first" in words) == ("wrong_state", True)
    assert refusal(there, "save_gradients", path=str(tmp_path / "none"))[0] == "wrong_state"
    # No gradient buffers, and none of the optimizer's tensors.
    assert there.trainer.status()["offloaded"]
    with pytest.raises(Exception, match="restore first"):
        _ = there.trainer.model


def test_what_lies_on_the_host_goes_out_by_the_host(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`current_device` is where mbridge makes what it receives from another stage."""
    trainer = make_trainer(model_path, torch.float32)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("meta"))

    def made() -> str:
        return torch.empty(1, device=torch.cuda.current_device()).device.type

    found: set[str] = set()
    trainer.give_weights(lambda name, value: found.add(made()))
    assert (found, made()) == ({"cpu"}, "meta")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_its_steps_are_those_of_a_trainer_on_the_host(
    model_path: Path, tmp_path: Path, dtype: str
) -> None:
    here, there = make(model_path, dtype), make(model_path, dtype, device=ELSEWHERE)
    for version in range(3):
        there.run("restore", {})
        accumulate(here, version, tmp_path)
        accumulate(there, version, tmp_path)
        assert_identical(there.trainer.gradients(), here.trainer.gradients())
        for trainer in (here, there):
            trainer.run("finish_batch", {"members": [0], "epoch": 0, "final": True})
        held = [value.untyped_storage().data_ptr() for value in there.trainer.parameters.values()]
        there.run("offload", {"directory": tmp_path})
        assert all(not value.numel() for value in there.trainer.parameters.values())
        there.run("restore", {})
        back = [value.untyped_storage().data_ptr() for value in there.trainer.parameters.values()]
        assert set(held) != set(back)
        assert_identical(everything(there), everything(here))


def test_a_first_restore_without_room_is_refused_and_may_be_asked_for_again(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gyre.cell_agent.trainer.model.policy import with_gradients as take

    here = make(model_path, "float32")
    full = [True]

    def with_gradients(model: Any) -> Any:
        if full:
            raise torch.OutOfMemoryError(f"tried to allocate {full.pop()}")
        return take(model)

    monkeypatch.setattr("gyre.cell_agent.trainer.trainer.with_gradients", with_gradients)
    there = make(model_path, "float32", device=ELSEWHERE)
    assert refusal(there, "restore")[0] == "no_memory"
    assert there.trainer.status()["offloaded"]
    assert there.run("checksum", {}) == here.run("checksum", {})
    there.run("restore", {})
    for trainer in (here, there):
        update(trainer, 0, tmp_path)
    assert_identical(everything(there), everything(here))


class NoDefault(TorchFunctionMode):
    """Where no device is said, the tensor has no contents."""

    def __init__(self) -> None:
        super().__init__()
        self.num_unsaid = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        told = dict(kwargs or {})
        if func.__name__ in FACTORIES and told.get("device") is None:
            self.num_unsaid += 1
            told["device"] = "meta"
        return func(*args, **told)


def test_a_step_says_of_each_tensor_where_it_is(model_path: Path) -> None:
    from gyre.cell_agent.trainer.batch.statistics import execution_totals, target_totals
    from gyre.cell_agent.trainer.model.packing import pack_micro_step

    trainer = make_trainer(model_path, torch.float32)
    shape = TreeShape(num_edges=9, edge_tokens=6, depth_first=0.6, vocab_size=50)
    step = random_tree_step(random.Random(1), shape, num_executions=3)
    packed = pack_micro_step(step, trainer.policy)
    expected = add_gradient(trainer, packed)
    with NoDefault() as mode:
        found = add_gradient(trainer, packed)
        totals = target_totals(
            found.policy,
            packed.targets,
            found.result,
            versions=packed.versions,
            versioned=packed.versioned,
        ).plus(execution_totals(found.result.ratios, found.result.kept))
        assert torch.tensor([1.0]).device.type == "meta"
    assert mode.num_unsaid == 1
    assert torch.equal(found.policy.logprobs, expected.policy.logprobs)
    assert totals.num_targets == step.num_targets
