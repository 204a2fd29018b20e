"""The time that a batch takes on one rank, and an emulated speed that it is held to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gyre.cell_agent.trainer.batch.inbox import Work


@dataclass(slots=True, kw_only=True)
class Clock:
    """Of one batch on this rank. busy_s: from a micro-step's start to its end, waits for other
    stages and an emulated speed included; slowest_s: of the slowest one. num_warmups: times that an
    empty pipeline was filled."""

    tokens_per_s: float | None = None
    busy_s: float = 0.0
    slowest_s: float = 0.0
    num_warmups: int = 0
    _due: float = field(default=0.0, init=False)

    def took(self, work: Work) -> None:
        if self.tokens_per_s is not None:
            start = max(self._due, time.perf_counter())
            self._due = start + work.step.num_tokens / self.tokens_per_s

    def keep_pace(self) -> None:
        """Until the micro-steps taken would be done at the emulated speed."""
        time.sleep(max(0.0, self._due - time.perf_counter()))
