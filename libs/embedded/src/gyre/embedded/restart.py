"""How soon a process that died is started again. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Exponential delays, forgotten after a quiet time, and a bound on the rate.

    first_delay_s  the delay after a first death: short, since clients wait in the proxy's backlog.
    max_delay_s    the delay doubles up to this with each death that follows soon.
    quiet_s        a process that lived this long starts again with the first delay.
    window_s, max_in_window
                   no more restarts than `max_in_window` in any `window_s`: a process that dies at
                   once for ever costs a bounded share of the machine.
    """

    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    quiet_s: float = 30.0
    window_s: float = 60.0
    max_in_window: int = 15

    def delay(self, deaths: Sequence[float], now: float) -> float:
        """Seconds to wait at `now`, the time of the last entry of `deaths` (ascending times)."""
        streak = 1
        for earlier, later in zip(reversed(deaths[:-1]), reversed(deaths[1:]), strict=True):
            if later - earlier > self.quiet_s:
                break
            streak += 1
        backoff = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(streak - 1, 32))
        if len(deaths) < self.max_in_window:
            return backoff
        # The restart now due is the (max_in_window + 1)-th after this death unless that one is old.
        window_opens = deaths[-self.max_in_window] + self.window_s
        return max(backoff, window_opens - now)
