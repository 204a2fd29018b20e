"""How long a cell's micro-steps take, and when one that is still not done hangs."""

from __future__ import annotations

# A micro-step is cut to a budget of tokens, so that none takes several times another; one huge
# execution does, twice over where it needs two passes.
FACTOR = 10.0
# However fast the others were, a machine may be busy for a while.
FLOOR_S = 30.0


class Pace:
    """The slowest micro-step that this cell has seen, over all lives of its trainer."""

    def __init__(self, *, floor_s: float = FLOOR_S, factor: float = FACTOR) -> None:
        self._floor_s, self._factor = floor_s, factor
        self._slowest_s = 0.0

    @property
    def limit_s(self) -> float:
        """Seconds after which a micro-step is taken to hang; infinite before the first ends."""
        if not self._slowest_s:
            return float("inf")
        return max(self._floor_s, self._factor * self._slowest_s)

    def took(self, seconds: float) -> None:
        """One has ended; 0: none has yet."""
        self._slowest_s = max(self._slowest_s, seconds)

    def expired(self, limit_s: float) -> None:
        """One was given up after so long. Should it not have hung but be that slow, then the next
        try has more time: a micro-step that is slow is never given up for ever."""
        self.took(limit_s)
