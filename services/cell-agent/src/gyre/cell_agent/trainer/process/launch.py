"""A trainer's command line: written by its agent, read by `__main__`. Imports no torch."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from gyre.cell_agent.gpus import VISIBLE, named_gpus, trains_on_gpu
from gyre.cell_agent.trainer.errors import NoGpu
from gyre.contracts.training_job import LayoutSection

ONE_RANK = LayoutSection()
DTYPES = ("float32", "float64", "bfloat16")
RECOMPUTE = ("none", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ranks of one cell find one another: torch's store at host:port, under a prefix that
    no other start of any cell uses."""

    host: str
    port: int
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLaunch:
    """One rank of a cell. rank: in the cell, 0 answers for it. local_rank: among those of its node,
    each of which has the GPU of this number. meeting: None for a cell of one.
    model_path: a Hugging Face directory. threads: of torch. nice: added to the process's niceness.
    dtype: of parameters, one of DTYPES. recompute: of activations, one of RECOMPUTE. tokens_per_s:
    emulated training speed, None for the machine's own."""

    cell: int
    model_path: Path
    rank: int = 0
    local_rank: int = 0
    layout: LayoutSection = ONE_RANK
    meeting: Meeting | None = None
    threads: int = 1
    nice: int = 0
    dtype: str = "float32"
    recompute: str = "none"
    tokens_per_s: float | None = None

    def command(self, control: str) -> list[str]:
        """control: as `control.open_control` takes it."""
        command = [
            sys.executable,
            *("-m", "gyre.cell_agent.trainer", "--cell", str(self.cell)),
            *("--model-path", str(self.model_path), "--control", control),
            *("--threads", str(self.threads), "--nice", str(self.nice), "--dtype", self.dtype),
            *("--recompute", self.recompute),
        ]
        if self.meeting is not None:
            meeting = self.meeting
            command += ["--rank", str(self.rank), "--local-rank", str(self.local_rank)]
            command += ["--layout", self.layout.model_dump_json()]
            command += ["--store", f"{meeting.host}:{meeting.port}", "--world", meeting.prefix]
        if self.tokens_per_s is not None:
            command += ["--emulate-tokens-per-s", str(self.tokens_per_s)]
        return command

    def of_rank(self, rank: int, local_rank: int | None = None) -> TrainerLaunch:
        """The same cell's other rank. local_rank: the same where the cell has one node."""
        return replace(self, rank=rank, local_rank=rank if local_rank is None else local_rank)


def own_devices(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """What a rank's environment shall say before torch looks at it. Of the GPUs that its agent sees
    it sees its own alone, and none where it trains on the CPU. What fails on it is told to it; who
    ends a rank is its agent. Raises NoGpu."""
    own, named = "", named_gpus(environ)
    if trains_on_gpu(environ):
        if named is not None and local_rank >= len(named):
            raise NoGpu(
                f"{VISIBLE} is {environ[VISIBLE]}, and {local_rank + 1} ranks of the cell are on "
                "this node: name a GPU for each, or none"
            )
        own = str(local_rank) if named is None else named[local_rank]
    return {VISIBLE: own, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


def read_command(arguments: Sequence[str] | None) -> tuple[TrainerLaunch, str]:
    """arguments: those behind the module's name, None for this process's. Returns the launch and
    the control socket's place. Ends the process with status 2 and a line where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m gyre.cell_agent.trainer")
    parser.add_argument("--cell", type=int, required=True)
    parser.add_argument("--model-path", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--control", required=True, help="inherited socket's number, or a path")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="added to this process's niceness")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none")
    parser.add_argument(
        "--emulate-tokens-per-s", type=_speed, help="hold micro-steps to this speed (emulation)"
    )
    parser.add_argument("--rank", type=int, default=0, help="in the cell")
    parser.add_argument("--local-rank", type=int, default=0, help="among those of its node")
    parser.add_argument("--layout", type=_layout, default=ONE_RANK, help="JSON")
    parser.add_argument("--store", type=_address, help="host:port where the cell's ranks meet")
    parser.add_argument("--world", help="the ranks' prefix in the store")
    options = parser.parse_args(arguments)
    meeting = None
    if options.store is not None and options.world is not None:
        host, port = options.store
        meeting = Meeting(host=host, port=port, prefix=options.world)
    if not 0 <= options.rank < options.layout.num_ranks:
        parser.error(f"--rank {options.rank}: the layout has {options.layout.num_ranks} ranks")
    if options.layout.num_ranks > 1 and meeting is None:
        parser.error("--store, --world: the ranks of a cell need a store to meet")
    launch = TrainerLaunch(
        cell=options.cell,
        model_path=options.model_path,
        rank=options.rank,
        local_rank=options.local_rank,
        layout=options.layout,
        meeting=meeting,
        threads=options.threads,
        nice=options.nice,
        dtype=options.dtype,
        recompute=options.recompute,
        tokens_per_s=options.emulate_tokens_per_s,
    )
    return launch, options.control


def _speed(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _layout(text: str) -> LayoutSection:
    try:
        return LayoutSection.model_validate_json(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(error.errors()[0]["msg"]) from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no host:port")
    return host, int(port)
