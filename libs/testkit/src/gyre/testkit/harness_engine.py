"""The `local` engine with loaded dice: everything is computed as ever, and each number that is
drawn is the one which makes the script's token of it. So a tiny model says what a script wants, and
its logprobs are the model's own.

    GYRE_PLAY=<play> python -m gyre.testkit.harness_engine <arguments of the local engine>
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from gyre.cell_agent.engine.local import __main__ as local
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine_turn import WARM_RID
from gyre.testkit.harness_script import PLAY_VARIABLE, Play, Turn


class LoadedDice(Scheduler):
    """Draws what the play says. Without a scene for a prompt, which the play notes, as ever."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._play = Play.load(Path(os.environ[PLAY_VARIABLE]))
        self._turns: dict[str, Turn | None] = {}
        self._logits: dict[str, Tensor] = {}

    def _adjust(self, logits: Tensor, request: Request) -> None:
        super()._adjust(logits, request)
        self._logits[request.rid] = logits

    def _draw(self, request: Request) -> float:
        logits = self._logits.pop(request.rid)
        if request.rid not in self._turns:
            self._turns[request.rid] = self._turn(request)
        turn = self._turns[request.rid]
        if turn is None:
            return super()._draw(request)
        token = turn.tokens[turn.kept + len(request.output_ids)]
        return _draw_of(token, logits / request.asked.sampling.temperature)

    def _turn(self, request: Request) -> Turn | None:
        # The cell agent's own call, after a role switch: nobody's turn.
        if request.rid == WARM_RID:
            return None
        name = f"engine {os.getpid()}"
        return self._play.turn(request.prompt, name, request.max_new_tokens)


def _draw_of(token: int, logits: Tensor) -> float:
    """The number in the middle of those that are turned into `token` (`sampling.sample`)."""
    logprobs = torch.log_softmax(logits.unsqueeze(0), dim=-1)[0]
    cumulative = logprobs.exp().double().cumsum(dim=-1)
    below = float(cumulative[token - 1]) if token else 0.0
    return (below + float(cumulative[token])) / 2 / float(cumulative[-1])


if __name__ == "__main__":
    with mock.patch.object(local, "Scheduler", LoadedDice):
        sys.exit(local.main())
