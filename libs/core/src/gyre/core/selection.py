"""What was started and not trained: surplus executions and dropped groups, by their length, and
groups of zero weight, whose rewards say nothing.

The first two favour what is short: `keep: first_finished` keeps the N of N' that end first,
`on_stale: drop` drops what takes long. The figures say by how much: mean seconds an execution took,
from `started` to `terminated`, all attempts together. One that was ended counts what it had taken
by then, so its class is longer in truth than it looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.core.advantage import LEAST_VALID


@dataclass(slots=True)
class Selection:
    """Fold of one job's training groups. Mutated by `fold` alone; an event is O(its own size)."""

    _duration_s: dict[str, float] = field(default_factory=dict)
    _dispatched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _ready: dict[str, group_events.GroupReady] = field(default_factory=dict)
    _claimed: dict[str, None] = field(default_factory=dict)
    _dropped: dict[str, None] = field(default_factory=dict)

    def fold(self, body: Body) -> None:
        match body:
            case sched.Dispatched(kind="training"):
                self._dispatched.update({plan.group: plan.executions for plan in body.groups})
            case run_events.Terminated():
                self._duration_s[body.execution] = body.duration_s
            case group_events.GroupReady():
                self._ready[body.group] = body
            case group_events.GroupClaimed():
                self._claimed[body.group] = None
            case sched.GroupDropped():
                self._dropped[body.group] = None
            case _:
                pass

    def summary(self) -> dict[str, int | float | None]:
        """Of the groups that a step has drawn: num_surplus, executions beyond the N kept, of which
        one that never started is in no mean; started_duration_s, kept and surplus together. Means
        in seconds, None of nothing. num_groups_equal, num_groups_unscored: groups of zero weight,
        because all rewards are equal or because fewer than two are valid."""
        kept: list[str] = []
        surplus: list[str] = []
        drawn = [self._ready[group] for group in self._claimed if group in self._ready]
        for group in drawn:
            for one in group.outcomes:
                (surplus if one.disposition == "surplus" else kept).append(one.execution)
        idle = [_num_valid(group) for group in drawn if group.zero_weight]
        dropped = [name for group in self._dropped for name in self._dispatched.get(group, ())]
        return {
            "num_surplus": len(surplus),
            "kept_duration_s": self._mean(kept),
            "surplus_duration_s": self._mean(surplus),
            "started_duration_s": self._mean((*kept, *surplus)),
            "num_groups_dropped": len(self._dropped),
            "dropped_duration_s": self._mean(dropped),
            "num_groups_drawn": len(self._claimed),
            "num_groups_equal": sum(num >= LEAST_VALID for num in idle),
            "num_groups_unscored": sum(num < LEAST_VALID for num in idle),
        }

    def _mean(self, executions: Iterable[str]) -> float | None:
        known = [self._duration_s[name] for name in executions if name in self._duration_s]
        return sum(known) / len(known) if known else None


def _num_valid(group: group_events.GroupReady) -> int:
    return sum(one.disposition == "valid" for one in group.outcomes)
