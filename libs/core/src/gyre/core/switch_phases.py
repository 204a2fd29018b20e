"""How long each phase of a role change takes, and what either side holds at its end.

Pure: folded from a job's facts. A change says its phases in `role_changed`, a join its own in
`batch_joined`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import BatchJoined, RoleChanged, RolePhase

# As a cell goes through them: out, then back.
ORDER = (
    *("stop_admitting", "reroute", "drain", "release_engine", "restore_trainer"),
    *("pull_weights", "register"),
    *("offload_trainer", "resume_engine", "receive_weights", "warm", "open_routes"),
)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed (nearest rank);
    values: not empty, in any order. 0 < share <= 1."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(slots=True, kw_only=True)
class PhaseTimes:
    """One phase in all changes. seconds: of those that were done. num_undone: that failed.
    engine_bytes, trainer_bytes: the most that either side held at its end, None if never told."""

    seconds: list[float] = field(default_factory=list)
    num_undone: int = 0
    engine_bytes: int | None = None
    trainer_bytes: int | None = None

    def add(self, phase: RolePhase) -> None:
        if phase.undone:
            self.num_undone += 1
        else:
            self.seconds.append(phase.seconds)
        self.engine_bytes = _larger(self.engine_bytes, phase.engine_bytes)
        self.trainer_bytes = _larger(self.trainer_bytes, phase.trainer_bytes)

    def summary(self) -> dict[str, Any]:
        """As in report.json: seconds, bytes."""
        done = self.seconds
        return {
            "num": len(done),
            "undone": self.num_undone,
            "p50_s": quantile(done, 0.5) if done else None,
            "p99_s": quantile(done, 0.99) if done else None,
            "max_s": max(done, default=None),
            "engine_bytes": self.engine_bytes,
            "trainer_bytes": self.trainer_bytes,
        }


@dataclass(slots=True)
class SwitchPhases:
    """By phase. Mutated by `fold` only."""

    by_name: dict[str, PhaseTimes] = field(default_factory=dict)

    def fold(self, body: Body) -> None:
        if isinstance(body, RoleChanged | BatchJoined):
            for phase in body.phases:
                self.by_name.setdefault(phase.name, PhaseTimes()).add(phase)

    def rows(self) -> list[tuple[str, PhaseTimes]]:
        """In the order that a cell goes through them."""
        place = {name: index for index, name in enumerate(ORDER)}
        return sorted(self.by_name.items(), key=lambda row: (place.get(row[0], len(ORDER)), row[0]))

    def summary(self) -> list[dict[str, Any]]:
        return [{"phase": name, **times.summary()} for name, times in self.rows()]


def _larger(most: int | None, value: int | None) -> int | None:
    return value if most is None else most if value is None else max(most, value)
