"""`python -m gyre.testkit.pipeline_stages`: the stages of a cell's pipeline, driven by a plan.

A process for each stage, forked from one that has imported torch and megatron, which takes longer
than the runs of a small plan.

Consumes: a JSON list of runs, each a model, rows a unit, a window and micro-steps of one batch, by
path. Produces, for each run n, `<out>.<stage>.<n>.json` with what the stage was told of each
micro-step, and `<out>.<stage>.<n>.safetensors` with its gradients by Megatron's names in the
undivided model. Exit status 1: a stage failed, and said why on standard error.
Waits for: each stage for the others, at each hand-over up to the time-out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.testkit.pipeline_stages")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--store", required=True, help="file where the stages meet")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    options = parser.parse_args(arguments)

    importlib.import_module("gyre.cell_agent.trainer.pipeline")
    fork = multiprocessing.get_context("fork")
    stages = [fork.Process(target=_run, args=(options, stage)) for stage in range(options.stages)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()
    return int(any(stage.exitcode for stage in stages))


def _run(options: argparse.Namespace, stage: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from gyre.cell_agent.trainer.model import start_cell_world

    torch.set_num_threads(1)
    store = FileStore(options.store, options.stages)
    start_cell_world(store, stage=stage, num_stages=options.stages, timeout_s=options.timeout_s)
    for number, run in enumerate(json.loads(options.plan.read_text())):
        _train(run, f"{options.out}.{stage}.{number}")
    # Nobody leaves while another still talks to it.
    dist.barrier()
    dist.destroy_process_group()


def _train(run: Mapping[str, Any], out: str) -> None:
    import safetensors.torch
    import torch

    from gyre.cell_agent.trainer.conversion import hf_to_megatron
    from gyre.cell_agent.trainer.hf_config import read_policy_config
    from gyre.cell_agent.trainer.model import build_model
    from gyre.cell_agent.trainer.stages import (
        own_stage,
        stage_gradients,
        stage_parameters,
        sum_tied_gradients,
    )
    from gyre.cell_agent.trainer.weights_io import read_weights

    model_path = Path(run["model"])
    policy = read_policy_config(model_path)
    dtype = getattr(torch, run["dtype"])
    stage = own_stage(build_model(policy, dtype))
    weights = hf_to_megatron(read_weights(model_path), policy)
    with torch.no_grad():
        for name, parameter in stage_parameters(stage).items():
            parameter.copy_(weights[name])
    stage.model.zero_grad_buffer()
    told = [_micro_step(stage, policy, Path(path), run) for path in run["steps"]]
    sum_tied_gradients(stage)
    Path(f"{out}.json").write_text(json.dumps(told))
    safetensors.torch.save_file(stage_gradients(stage), f"{out}.safetensors")


def _micro_step(stage: Any, policy: Any, path: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    from gyre.adapters.microsteps import decode_microstep
    from gyre.cell_agent.trainer.packing import pack_micro_step
    from gyre.cell_agent.trainer.pipeline import add_gradient
    from gyre.core.objective import ObjectiveSettings
    from gyre.objective import NonFiniteLoss, ObjectiveError

    step = decode_microstep(path.read_bytes())
    packed = pack_micro_step(step, policy, rows_per_unit=run["rows_per_unit"])
    settings = ObjectiveSettings(**run["objective"])
    try:
        known, result = add_gradient(stage, packed, settings, window=run["window"])
    except (NonFiniteLoss, ObjectiveError) as error:
        return {"error": str(error)}
    return {
        "units": len(packed.units),
        "num_forwarded_tokens": packed.num_forwarded_tokens(window=run["window"]),
        "loss": result.loss.item(),
        "ratios": result.ratios,
        "kept": result.kept,
        "logprobs": known.logprobs.tolist(),
        "entropy": known.entropy.tolist(),
    }


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main())
