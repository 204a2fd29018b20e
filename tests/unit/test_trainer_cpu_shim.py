"""The shim against the pinned megatron-core, in a process of its own: it patches torch."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from typing import Any

import pytest

from gyre.cell_agent.trainer.model.layout import ENDLESS_S
from gyre.testkit.tiny_model import make_tiny_model

_PROBE = """
import json, sys, warnings
warnings.filterwarnings("ignore", module="megatron")
from pathlib import Path
import torch
from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.megatron import cpu_shim
from gyre.cell_agent.trainer.megatron.megatron_core import parallel_state
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.model.layout import cell_group, start_cell_world
from gyre.cell_agent.trainer.model.policy import build_module, with_gradients
from gyre.cell_agent.trainer.optimizer import CoreOptimizer
from gyre.cell_agent.trainer.settings import OptimizerSettings
cpu_shim.install()
start_cell_world(device=CPU)
groups = [
    torch.distributed.group.WORLD,
    cell_group(),
    parallel_state.get_tensor_model_parallel_group(),
    parallel_state.get_pipeline_model_parallel_group(),
    parallel_state.get_context_parallel_group(),
    parallel_state.get_data_parallel_group(),
    parallel_state.get_expert_model_parallel_group(),
]
policy = read_policy_config(Path(sys.argv[1]))
model = with_gradients(build_module(policy, torch.float32, CPU))
settings = OptimizerSettings(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0,
                             warmup_steps=0, grad_clip=1.0)
optimizer = CoreOptimizer(model, settings)
parameters = list(model.module.parameters())
def filled(value):
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.main_grad.fill_(value)
    update = optimizer.update()
    moved = any(not torch.equal(a, b) for a, b in zip(before, parameters))
    return [update.skipped, moved, optimizer.num_updates, update.grad_norm]
num = sum(p.numel() for p in parameters)
infinite, finite = filled(float("inf")), filled(2.0)
print(json.dumps({
    "infinite": infinite[:3], "finite": finite[:3], "norm": finite[3] / (2 * num**0.5),
    "clipped": float(parameters[0].main_grad.max()) * num**0.5,
    "grads_left": sum(p.grad is not None for p in parameters),
    "waits_s": [group._get_backend(CPU).options._timeout.total_seconds() for group in groups],
    "compiler": "torch._inductor.compile_fx" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(model)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_rank_waits_for_the_cells_others_until_its_agent_ends_it(found: dict[str, Any]) -> None:
    """A command of a large model takes hours; torch's and Megatron's groups give up before."""
    assert set(found["waits_s"]) == {ENDLESS_S}


def test_the_pinned_megatron_steps_clips_and_skips_on_a_cpu(found: dict[str, Any]) -> None:
    assert importlib.metadata.version("megatron-core") == "0.16.1"
    assert found["infinite"] == [True, False, 0]
    assert found["finite"] == [False, True, 1]
    assert abs(found["norm"] - 1) < 1e-5
    assert abs(found["clipped"] - 1) < 1e-4
    assert found["grads_left"] == 0
    assert found["compiler"] is False
