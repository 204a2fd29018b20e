"""What the trainers of a job did with their time, summed over cells and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def trainer_times(steps: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """steps: each one's statistics, as `StepStatistics` dumps them. Seconds, from each cell's join
    to the end of its batch; the share is idle / (busy + idle), None where no step tells its times,
    as in logs that are older than they are."""
    times = [one for step in steps for one in step["cell_times"]]
    busy, idle, pull = (sum(one[f"{name}_s"] for one in times) for name in ("busy", "idle", "pull"))
    return {
        "trainer_busy_s": busy,
        "trainer_idle_s": idle,
        "trainer_pull_s": pull,
        "trainer_idle_share": idle / (busy + idle) if busy + idle > 0 else None,
    }
