"""`python -m gyre.testkit.light_rank`: a rank's process without a model: the real control socket,
beats and end, and commands that answer, refuse, take their time or die as they are told.

It starts in a moment, where a trainer imports torch and megatron first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gyre.cell_agent.group import PACED
from gyre.cell_agent.trainer.errors import BadModel, PeerLost, TrainerError, WrongState
from gyre.cell_agent.trainer.process.client import TrainerProcess
from gyre.cell_agent.trainer.process.control import (
    end_with_agent,
    open_control,
    refuse,
    serve,
)
from gyre.cell_agent.trainer.process.launch import TrainerLaunch

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.commands import TrainerCommands


@dataclass(frozen=True, slots=True, kw_only=True)
class LightLaunch(TrainerLaunch):
    """Starts a light rank in the trainer's place. can_start: false of one that refuses to."""

    can_start: bool = True

    def command(self, control: str) -> list[str]:
        how = ("--rank", str(self.rank), *(() if self.can_start else ("--refuse",)))
        return [sys.executable, "-m", "gyre.testkit.light_rank", "--control", control, *how]


def light_rank(rank: int, *, silence_s: float = 30.0, can_start: bool = True) -> TrainerProcess:
    launch = LightLaunch(cell=0, model_path=Path("none"), rank=rank, can_start=can_start)
    return TrainerProcess(launch, silence_s=silence_s)


class LightCommands:
    """rank: whose answers these are. log: the commands so far, in order."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.log: list[str] = []
        self.slowest_s = 0.0

    def run(self, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """seconds: of work, by rank. refuse: by rank, what is raised. die: ranks that end."""
        self.log.append(command)
        seconds = arguments.get("seconds", {}).get(str(self.rank), 0.0)
        time.sleep(seconds)
        if command in PACED:
            self.slowest_s = max(self.slowest_s, seconds)
        kind = arguments.get("refuse", {}).get(str(self.rank))
        if kind is not None:
            raise _REFUSALS[kind](f"as told, at rank {self.rank}")
        if self.rank in arguments.get("die", ()):
            os._exit(7)
        known = {"rank": self.rank, "pid": os.getpid(), "log": self.log}
        return {**known, "slowest_s": self.slowest_s}


_REFUSALS: dict[str, type[TrainerError]] = {"wrong_state": WrongState, "peer_lost": PeerLost}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.testkit.light_rank")
    parser.add_argument("--control", required=True)
    parser.add_argument("--rank", type=int, choices=range(8), required=True)
    parser.add_argument("--refuse", action="store_true")
    options = parser.parse_args(arguments)
    control = open_control(options.control)
    ended = end_with_agent(control)
    if options.refuse:
        ended.set()
        refuse(control, BadModel(f"rank {options.rank} has no model"))
        return 2
    serve(control, cast("TrainerCommands", LightCommands(options.rank)), ended)
    return 0


if __name__ == "__main__":
    sys.exit(main())
