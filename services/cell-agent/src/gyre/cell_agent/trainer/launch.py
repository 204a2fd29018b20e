"""A trainer's command line: written by its agent, read by `__main__`. Imports no torch."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLaunch:
    """model_path: a Hugging Face directory. threads: of torch. nice: added to the process's
    niceness. dtype: of parameters, one of DTYPES. tokens_per_s: emulated training speed, None for
    the machine's own."""

    cell: int
    model_path: Path
    threads: int = 1
    nice: int = 0
    dtype: str = "float32"
    tokens_per_s: float | None = None

    def command(self, control: str) -> list[str]:
        """control: as `control.open_control` takes it."""
        command = [
            sys.executable,
            *("-m", "gyre.cell_agent.trainer", "--cell", str(self.cell)),
            *("--model-path", str(self.model_path), "--control", control),
            *("--threads", str(self.threads), "--nice", str(self.nice), "--dtype", self.dtype),
        ]
        if self.tokens_per_s is not None:
            command += ["--emulate-tokens-per-s", str(self.tokens_per_s)]
        return command


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
    parser.add_argument(
        "--emulate-tokens-per-s", type=_speed, help="hold micro-steps to this speed (emulation)"
    )
    options = parser.parse_args(arguments)
    launch = TrainerLaunch(
        cell=options.cell,
        model_path=options.model_path,
        threads=options.threads,
        nice=options.nice,
        dtype=options.dtype,
        tokens_per_s=options.emulate_tokens_per_s,
    )
    return launch, options.control


def _speed(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value
