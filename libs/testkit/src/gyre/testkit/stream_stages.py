"""`python -m gyre.testkit.stream_stages`: the stages of a cell's pipeline, driven by a plan.

A process for each stage, forked from one that has imported torch and megatron, which takes longer
than the runs of a small plan.

Consumes: a JSON list of runs (`Run`), in turn. Produces, for each run n, `<out>.<stage>.<n>.json`
with what the stage was told, and `<out>.<stage>.<n>.safetensors` with its gradients by Megatron's
names in the undivided model. Exit status 1: a stage failed, and said why on standard error.
Waits for: each stage for the others, at each hand-over up to the time-out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from gyre.cell_agent.trainer.batch.headers import HeaderLine
    from gyre.cell_agent.trainer.model.packing import ForwardUnit, PackedMicroStep
    from gyre.cell_agent.trainer.model.stages import Stage
    from gyre.core.microstep import MicroStep

# Of the pause that a late micro-step makes, and how long a stream of the plan waits before it.
_LATE_S = 0.4
_STARVED_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A batch, as JSON. steps: paths of its micro-steps. rows_per_unit: as `pack_micro_step` takes
    it. schedule: `stream`, or `megatron` for its own 1F1B, which wants one unit a micro-step. late:
    before which steps the pipeline runs dry. flushed: after which it is emptied. dies: (stage,
    before which step) is killed; must be the last run."""

    model: str
    dtype: str
    steps: list[str]
    objective: dict[str, Any]
    rows_per_unit: int | None = None
    schedule: str = "stream"
    late: list[int] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)
    dies: list[int] | None = None


def plan_of(runs: Sequence[Run]) -> str:
    return json.dumps([asdict(run) for run in runs])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.testkit.stream_stages")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--store", required=True, help="file where the stages meet")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    options = parser.parse_args(arguments)

    importlib.import_module("gyre.cell_agent.trainer.batch.accumulation")
    fork = multiprocessing.get_context("fork")
    stages = [fork.Process(target=_work, args=(options, stage)) for stage in range(options.stages)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()
    return int(any(stage.exitcode not in (0, -signal.SIGKILL) for stage in stages))


def _work(options: argparse.Namespace, stage: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from gyre.cell_agent.trainer.batch import stream
    from gyre.cell_agent.trainer.batch.headers import HeaderLine
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.layout import start_cell_world
    from gyre.contracts.training_job import LayoutSection

    torch.set_num_threads(1)
    stream.STARVED_S = _STARVED_S
    store = FileStore(options.store, options.stages)
    layout = LayoutSection(pipeline=options.stages)
    start_cell_world(layout, stage, store, device=CPU, timeout_s=options.timeout_s)
    line = HeaderLine()
    for number, values in enumerate(json.loads(options.plan.read_text())):
        run, out = Run(**values), f"{options.out}.{stage}.{number}"
        if run.dies is not None:
            _outlive(run, line, stage, out)
        _train(run, line, out)
    # Nobody leaves while another still talks to it.
    dist.barrier()
    dist.destroy_process_group()


def _train(run: Run, line: HeaderLine, out: str) -> None:
    import safetensors.torch

    from gyre.cell_agent.trainer.model.stages import sum_tied_gradients
    from gyre.testkit.stage_names import stage_gradients

    stage = _stage(run)
    told = {"megatron": _by_megatron, "stream": _streamed}[run.schedule](stage, line, run)
    sum_tied_gradients(stage)
    Path(f"{out}.json").write_text(json.dumps(told))
    safetensors.torch.save_file(stage_gradients(stage), f"{out}.safetensors")


def _stage(run: Run) -> Stage:
    import torch

    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.hf_config import read_policy_config
    from gyre.cell_agent.trainer.model.policy import build_module, with_gradients
    from gyre.cell_agent.trainer.model.stages import own_stage
    from gyre.cell_agent.trainer.model.weights_io import read_weights
    from gyre.testkit.hf_conversion import hf_to_megatron
    from gyre.testkit.stage_names import stage_parameters

    policy = read_policy_config(Path(run.model))
    stage = own_stage(with_gradients(build_module(policy, getattr(torch, run.dtype), CPU)))
    weights = hf_to_megatron(read_weights(Path(run.model)), policy)
    with torch.no_grad():
        for name, parameter in stage_parameters(stage).items():
            parameter.copy_(weights[name])
    stage.model.zero_grad_buffer()
    return stage


def _packed(run: Run) -> list[tuple[MicroStep, PackedMicroStep]]:
    from gyre.adapters.microsteps import decode_microstep
    from gyre.cell_agent.trainer.model.hf_config import read_policy_config
    from gyre.cell_agent.trainer.model.packing import pack_micro_step

    policy = read_policy_config(Path(run.model))
    steps = [decode_microstep(Path(path).read_bytes()) for path in run.steps]
    pack = partial(pack_micro_step, policy=policy, rows_per_unit=run.rows_per_unit)
    return [(step, pack(step)) for step in steps]


def _streamed(stage: Stage, line: HeaderLine, run: Run) -> dict[str, Any]:
    from gyre.cell_agent.trainer.batch.accumulation import Accumulation
    from gyre.cell_agent.trainer.batch.clock import Clock
    from gyre.cell_agent.trainer.batch.inbox import Work
    from gyre.cell_agent.trainer.batch.stream import Stream
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.errors import BadMicroStep
    from gyre.core.objective import ObjectiveSettings

    steps = _packed(run)
    clock = Clock()
    stream = Stream(stage, line, ObjectiveSettings(**run.objective), clock, CPU)
    batch = Accumulation(steps[0][0].batch, stream, line, ())
    refused = ""
    try:
        for step, packed in steps:
            _perhaps_die(run, stage, step.index)
            if step.index in run.late:
                time.sleep(_LATE_S)
            batch.submit(Work(step=step, packed=packed if step.num_targets else None))
            if step.index in run.flushed:
                batch.flush()
        batch.finish(cell=0, pull_s=0.0)
    except BadMicroStep as error:
        refused = str(error)
        batch.abandon()
    return {
        "refused": refused,
        "accumulated": batch.accumulated,
        "num_warmups": clock.num_warmups,
        "problems": batch.record.problems,
        "executions": [asdict(one) for one in batch.record.executions],
        "loss": batch.record.totals.loss,
        "num_forwarded_tokens": batch.record.totals.num_forwarded_tokens,
    }


def _perhaps_die(run: Run, stage: Stage, step: int) -> None:
    if run.dies == [stage.index, step]:
        os.kill(os.getpid(), signal.SIGKILL)


def _outlive(run: Run, line: HeaderLine, stage: int, out: str) -> None:
    """Leaves at once: the groups are of no use any more."""
    from gyre.cell_agent.trainer.errors import StageLost

    began = time.monotonic()
    try:
        _streamed(_stage(run), line, run)
    except StageLost as error:
        told = {"lost": str(error), "seconds": time.monotonic() - began}
        Path(f"{out}.json").write_text(json.dumps(told))
    os._exit(0)


def _by_megatron(stage: Stage, line: HeaderLine, run: Run) -> dict[str, Any]:
    """Its schedule sends each shape ahead of its tensor, where it is told that lengths vary."""
    from megatron.core.pipeline_parallel.schedules import (
        forward_backward_pipelining_without_interleaving,
    )

    steps = [packed for _, packed in _packed(run)]
    assert all(len(packed.units) == 1 for packed in steps)
    config = stage.model.config
    config.variable_seq_lengths = True
    forward_backward_pipelining_without_interleaving(
        forward_step_func=partial(_forward_step, run.objective),
        data_iterator=iter(steps),
        model=stage.model,
        num_microbatches=len(steps),
        seq_length=0,
        micro_batch_size=1,
    )
    config.variable_seq_lengths = False
    return {}


def _forward_step(
    objective: dict[str, Any], steps: Iterator[PackedMicroStep], model: Any
) -> tuple[Tensor, Any]:
    packed = next(steps)
    (unit,) = packed.units
    return model(unit.tree, unit.predictors), partial(_loss, objective, packed, unit)


def _loss(
    objective: dict[str, Any], packed: PackedMicroStep, unit: ForwardUnit, logits: Tensor
) -> tuple[Tensor, Tensor, None]:
    """With a number of tokens, Megatron divides the loss by nothing."""
    import torch

    from gyre.cell_agent.trainer.batch.passes import unit_policy
    from gyre.core.objective import ObjectiveSettings
    from gyre.objective import objective_loss

    policy = unit_policy(packed, unit, logits)
    result = objective_loss(policy.logprobs, packed.targets, ObjectiveSettings(**objective))
    return result.loss, torch.zeros((), dtype=torch.int), None


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main())
