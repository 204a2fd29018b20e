"""How long executions run and how much they give to train."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol

# The time-out that ended an execution: none, the harness's (scored), the overall budget (not).
Ending = Literal["none", "harness", "overall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """durations: seconds, one an execution. endings: the time-out that each ran into.
    micro_steps: node-seconds of training, one a micro-step."""

    durations: tuple[float, ...]
    endings: tuple[Ending, ...]
    micro_steps: tuple[float, ...]


class Workload(Protocol):
    @property
    def num_tasks(self) -> int | None:
        """Size of the task set; None when no task comes twice."""
        ...

    def group(self, number: int, size: int) -> GroupWork:
        """The work of the job's `number`th group of `size` executions; the same whenever asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Lengths of executions: median * exp(group_sigma G + individual_sigma I), G shared by a group.

    An execution that would be longer than `timeout_h`, the harness's ceiling, ends there and is
    scored, so that lengths cluster at it. A share `overall_after_timeout` of those, and
    `overall_share` of the others, exhaust the overall budget instead: `overall_timeout_h` and no
    valid reward. Hours.
    """

    median_h: float
    group_sigma: float = 0.0
    individual_sigma: float = 0.0
    timeout_h: float = math.inf
    overall_after_timeout: float = 0.0
    overall_share: float = 0.0
    overall_timeout_h: float = math.inf

    def draw(
        self, source: Random, size: int, factor: float | None = None
    ) -> list[tuple[float, Ending]]:
        """(hours, how it ends) of each of a group's executions. factor: the group's G, drawn like
        the rest when it is None."""
        drawn = source.gauss(0.0, 1.0)
        common = math.log(self.median_h) + self.group_sigma * (drawn if factor is None else factor)
        return [self._one(source, common) for _ in range(size)]

    def _one(self, source: Random, common: float) -> tuple[float, Ending]:
        natural = math.exp(common + self.individual_sigma * source.gauss(0.0, 1.0))
        capped = natural >= self.timeout_h
        if source.random() < (self.overall_after_timeout if capped else self.overall_share):
            return self.overall_timeout_h, "overall"
        return (self.timeout_h, "harness") if capped else (natural, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """node_hours: of one step's work. num_micro_steps: of each group, alike. length_share: of a
    group's work, how much is in proportion to its executions' mean length over
    reference_execution_h; the rest is the same for every group."""

    node_hours: float
    groups_per_step: int
    num_micro_steps: int = 1
    length_share: float = 0.0
    reference_execution_h: float = 1.0

    def micro_steps(self, mean_h: float) -> tuple[float, ...]:
        """Node-seconds of each micro-step of a group whose executions took `mean_h` on average."""
        weight = 1 + self.length_share * (mean_h / self.reference_execution_h - 1)
        node_s = weight * self.node_hours * 3600.0 / (self.groups_per_step * self.num_micro_steps)
        return (node_s,) * self.num_micro_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A workload from a distribution. Group n is the same in every run of one seed, whatever the
    schedule: schedules are compared on common random numbers.

    num_tasks: size of the task set, whose tasks are sampled in turn; the groups of one task share
    their factor G. None: no task comes twice."""

    lengths: Lognormal
    training: Training
    seed: int
    num_tasks: int | None = None

    def group(self, number: int, size: int) -> GroupWork:
        factor = None
        if self.num_tasks is not None:
            # The task's factor is that of its first group.
            factor = self._source(number % self.num_tasks).gauss(0.0, 1.0)
        ends = self.lengths.draw(self._source(number), size, factor)
        return GroupWork(
            durations=tuple(hours * 3600.0 for hours, _ in ends),
            endings=tuple(ending for _, ending in ends),
            micro_steps=self.training.micro_steps(sum(hours for hours, _ in ends) / size),
        )

    def _source(self, number: int) -> Random:
        return Random(self.seed * 1_000_003 + number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A workload by function: seconds of execution k of group n; for tests and traces."""

    duration: Callable[[int, int], float]
    micro_steps: tuple[float, ...] = field(default=(1.0,))
    num_tasks: int | None = None

    def group(self, number: int, size: int) -> GroupWork:
        return GroupWork(
            durations=tuple(self.duration(number, place) for place in range(size)),
            endings=tuple[Ending, ...](["none"] * size),
            micro_steps=self.micro_steps,
        )
