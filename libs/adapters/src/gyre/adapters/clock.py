"""Where time comes from: the shell reads a clock and passes `now` on; the core never asks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """A source of unix time, in seconds."""

    def now(self) -> float:
        """Unix seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        return time.time()


@dataclass(slots=True, kw_only=True)
class ManualClock:
    """A clock that moves only when it is told to, for tests and simulation."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Mutates the clock. Raises ValueError when asked to go back."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: advance({seconds})")
        self.seconds += seconds
