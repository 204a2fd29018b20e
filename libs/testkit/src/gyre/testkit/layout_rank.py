"""`python -m gyre.testkit.layout_rank`: the ranks of one cell, driven by a plan of layouts.

A process for each rank, forked from one that has imported torch and megatron, which takes longer
than the runs of a small plan. The cell's world is formed anew for each run, by that run's layout.

Consumes: a JSON list of runs, each a layout, a model, a dtype, what of `build_module` is not its
default, whether a checkpoint is saved and resumed behind it, and micro-steps of one batch, by path.
Produces, for each run n, `<out>.<rank>.<n>.json`
with the answers to the rank's commands, and from the first rank `<out>.0.<n>.gradients`,
`.weights`: safetensors by Hugging Face names, after the batch's update. Exit status 1: a rank
failed, and said why on standard error.
Waits for: each rank for the others, at each collective up to the time-out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

VERSION = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.testkit.layout_rank")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    options = parser.parse_args(arguments)

    importlib.import_module("gyre.cell_agent.trainer.commands")
    Path(f"{options.out}.store").unlink(missing_ok=True)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_run, args=(options, rank)) for rank in range(options.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return int(any(rank.exitcode for rank in ranks))


def _run(options: argparse.Namespace, rank: int) -> None:
    import torch
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.megatron.megatron_core import parallel_state
    from gyre.cell_agent.trainer.model.layout import start_cell_world
    from gyre.contracts.training_job import LayoutSection

    torch.set_num_threads(1)
    store = FileStore(f"{options.out}.store", options.ranks)
    for number, run in enumerate(json.loads(options.plan.read_text())):
        layout = LayoutSection.model_validate(run["layout"])
        ours = PrefixStore(str(number), store)
        start_cell_world(layout, rank, ours, device=CPU, timeout_s=options.timeout_s)
        place = f"{options.out}.{rank}.{number}"
        told = _train(run, layout, rank, place)
        Path(f"{place}.json").write_text(json.dumps(told))
        # Nobody leaves while another still talks to it.
        torch.distributed.barrier()
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _train(run: Mapping[str, Any], layout: Any, rank: int, place: str) -> dict[str, Any]:
    """As the agent has a cell train one batch, whose core it is, all alone."""
    import torch

    from gyre.adapters.microsteps import decode_microstep
    from gyre.cell_agent.trainer.commands import TrainerCommands
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.layout import own_coordinate
    from gyre.cell_agent.trainer.model.weights_io import to_bytes
    from gyre.cell_agent.trainer.process.launch import TrainerLaunch
    from gyre.cell_agent.trainer.trainer import MegatronTrainer

    model = Path(run["model"])
    launch = TrainerLaunch(cell=0, model_path=model, rank=rank, layout=layout, dtype=run["dtype"])
    commands = TrainerCommands(launch, CPU)
    if run["options"]:
        policy, dtype = commands.trainer.policy, getattr(torch, run["dtype"])
        commands.trainer = MegatronTrainer(policy, dtype, CPU, **run["options"])
    commands.configure(job="j", objective=run["objective"], optimizer=run["optimizer"])
    loaded = commands.load_weights(path=model, version=VERSION, lineage=0)
    commands.form_world(epoch=1, rank=0, size=1, timeout_s=60.0)
    batch = decode_microstep(Path(run["steps"][0]).read_bytes()).batch
    commands.begin_batch(batch=batch, version=VERSION)
    with _tokens_of_norm(commands.trainer) as norm_tokens:
        for path in run["steps"]:
            commands.submit_step(source=path)
        answers = commands.flush_steps()["reports"]
    finished = commands.finish_batch(members=[0], epoch=1, final=True)
    commands.save_gradients(path=Path(f"{place}.gradients"))
    weights = commands.trainer.weights()
    if rank == 0:
        Path(f"{place}.weights").write_bytes(to_bytes(weights))
    return {
        "coordinate": asdict(own_coordinate()),
        "loaded": loaded,
        "num_parameters": commands.status()["num_parameters"],
        "norm_tokens": norm_tokens,
        "micro_steps": answers,
        "finished": finished,
        "updated": sorted((commands.trainer.optimizer_state() or {"parameters": ()})["parameters"]),
        "checkpoint": _checkpointed(commands, run, place) if run["checkpoint"] else None,
    }


def _checkpointed(commands: Any, run: Mapping[str, Any], place: str) -> dict[str, Any]:
    from gyre.testkit.layout_checkpoint import saved_and_resumed

    *_, rank, number = place.rsplit(".", 2)
    directory = Path(place).parent / f"checkpoints.{number}" / "l0-v00004"
    return saved_and_resumed(commands, directory, run["steps"], VERSION + 1, int(rank))


@contextmanager
def _tokens_of_norm(trainer: Any) -> Iterator[list[int]]:
    """How many tokens each forward pass of this rank gives the first layer's norm."""
    counted: list[int] = []
    norm = trainer.model.module.decoder.layers[0].input_layernorm
    handle = norm.register_forward_hook(lambda module, given, out: counted.append(len(given[0])))
    try:
        yield counted
    finally:
        handle.remove()


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main())
