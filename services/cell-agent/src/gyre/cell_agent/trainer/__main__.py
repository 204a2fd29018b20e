"""`python -m gyre.cell_agent.trainer`: one cell's trainer.

Consumes: commands on its control socket, one at a time, on one thread; micro-steps by path.
Produces: answers; checkpoints; weights over TCP on threads that touch no tensor.
Waits for: the next command; in finish_batch, for the other members of the batch's prefix.
Is unblocked by: a member's death (at once), the world's time-out, the control socket's end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from gyre.cell_agent.trainer.control import open_control, serve
from gyre.cell_agent.trainer.errors import TrainerError

_DTYPES = ("float32", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.cell_agent.trainer")
    parser.add_argument("--cell", type=int, required=True)
    parser.add_argument("--model-path", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--control", required=True, help="inherited socket's number, or a path")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="added to this process's niceness")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument(
        "--emulate-tokens-per-s", type=_speed, help="hold micro-steps to this speed (emulation)"
    )
    options = parser.parse_args(arguments)

    control = open_control(options.control)
    os.nice(options.nice)
    import torch

    torch.set_num_threads(options.threads)
    from gyre.cell_agent.trainer.commands import TrainerCommands
    from gyre.cell_agent.trainer.model import start_cell_world

    start_cell_world()
    try:
        commands = TrainerCommands(
            options.cell,
            options.model_path,
            getattr(torch, options.dtype),
            tokens_per_s=options.emulate_tokens_per_s,
        )
    except TrainerError as error:
        sys.stderr.write(f"trainer of cell {options.cell}: {error}\n")
        return 2
    serve(control, commands)
    return 0


def _speed(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main())
