"""The shim against the pinned megatron-core, in a process of its own: it patches torch."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

from gyre.testkit.tiny_model import make_tiny_model

_PROBE = """
import json, sys, warnings
warnings.filterwarnings("ignore", module="megatron")
from pathlib import Path
import torch
from gyre.cell_agent.trainer.megatron import cpu_shim
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.model.layout import start_cell_world
from gyre.cell_agent.trainer.model.policy import build_model
from gyre.cell_agent.trainer.optimizer import CoreOptimizer
from gyre.cell_agent.trainer.settings import OptimizerSettings
cpu_shim.install()
start_cell_world()
model = build_model(read_policy_config(Path(sys.argv[1])), torch.float32)
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
    "compiler": "torch._inductor.compile_fx" in sys.modules,
}))
"""


def test_the_pinned_megatron_steps_clips_and_skips_on_a_cpu(tmp_path: Path) -> None:
    assert importlib.metadata.version("megatron-core") == "0.16.1"
    model = make_tiny_model(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(model)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["infinite"] == [True, False, 0]
    assert found["finite"] == [False, True, 1]
    assert abs(found["norm"] - 1) < 1e-5
    assert abs(found["clipped"] - 1) < 1e-4
    assert found["grads_left"] == 0
    assert found["compiler"] is False
