"""Why the scheduler did what it did, from the log alone: pure folds and views, no clock, no I/O.

| module | answers |
|---|---|
| `decisions` | does the decider still say what the log recorded? |
| `why`, `turns`, `checks` | why a cell joins training or not: eq. (2), eq. (3), the supply timer |
| `bursts` | how long a burst is, and who goes on training behind it |
| `waiting` | which group and executions a starving burst waits for |
| `journeys`, `staleness` | where each group's time went; d of each, the mean, the worst |
| `compare` | finished runs side by side |
| `turning` | the recorded moments at which roles were decided |
"""

from gyre.core.explain.checks import Check
from gyre.core.explain.compare import RunClock, RunTimes
from gyre.core.explain.decisions import (
    Difference,
    Recheck,
    before_each_decision,
    first_difference,
)
from gyre.core.explain.journeys import Journeys
from gyre.core.explain.staleness import StalenessReport, staleness_report
from gyre.core.explain.turning import TurningPoint, turning_point
from gyre.core.explain.waiting import Waiting, waiting_for
from gyre.core.explain.why import Explanation, UnknownCell, explain

__all__ = [
    "Check",
    "Difference",
    "Explanation",
    "Journeys",
    "Recheck",
    "RunClock",
    "RunTimes",
    "StalenessReport",
    "TurningPoint",
    "UnknownCell",
    "Waiting",
    "before_each_decision",
    "explain",
    "first_difference",
    "staleness_report",
    "turning_point",
    "waiting_for",
]
