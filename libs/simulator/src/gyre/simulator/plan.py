"""`gyre plan`: which cells, phi, mu, rho_min and tau finish a job soonest at a given staleness.

Every candidate is simulated on the live decider: first all cells and (phi, mu) that meet the
staleness under `gyre`, then the best of them under `gyre+`, then one number changed at a time until
none makes it faster. What cannot work is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from gyre.contracts.job import JobSpec
from gyre.contracts.schedule import PolicyName, ScheduleSection
from gyre.simulator.engine import StalledError
from gyre.simulator.planfile import PlanSection
from gyre.simulator.spec import NodesSection, SpecError, job_spec
from gyre.simulator.speeds import Speeds
from gyre.simulator.summary import Summary, simulate_job, summarize
from gyre.simulator.workload import Workload

# A job of more steps is simulated for this many, and its hours are scaled up.
MAX_SIMULATED_STEPS = 48
# Fewer cells than the paper tried: its four 8-node cells were 2.2 % slower than eight of 4.
FEW_CELLS = 4
RHO_MINS = (0.2, 0.35, 0.5, 0.75, 1.0)
# tau in switches there and back: shorter ones join for supply that is gone a moment later.
TAUS_IN_SWITCHES = (0.0, 1.0, 5.0, 25.0)

# Workload of a job under a seed.
MakeWorkload = Callable[[JobSpec, int], Workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """nodes: of each cell."""

    nodes: tuple[float, ...]
    phi: float
    mu: int
    rho_min: float
    tau_s: float
    streaming: bool = True
    policy: PolicyName = "gyre"
    training_cells: int | None = None

    @property
    def staleness(self) -> float:
        return self.phi + (self.mu - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate and what came of it. hours: of the whole job."""

    candidate: Candidate
    hours: float
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """options: (cells, phi, mu) tried, best first. sensitivity: what one number alone changes about
    the best. baselines: the other policies at the same staleness. refused: candidates that cannot
    work, with why. warnings: what the user should know of the recommendation."""

    best: Option
    options: tuple[Option, ...]
    sensitivity: tuple[tuple[str, Option], ...]
    baselines: tuple[Option, ...]
    refused: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Planner:
    """schedule: N, B, num_steps of the job. speeds: from the plan or from a recorded run."""

    section: PlanSection
    schedule: ScheduleSection
    workload: MakeWorkload
    speeds: Speeds
    refused: list[tuple[str, str]] = field(default_factory=list)
    _tried: dict[Candidate, Option | None] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Raises SpecError when nothing works."""
        _refuse_hopeless(self.section, self.schedule)
        found = sorted(
            (option for candidate in self._grid() if (option := self._try(candidate))),
            key=lambda option: option.hours,
        )
        if not found:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.refused[:3])
            raise SpecError(f"plan: no schedule works at staleness {self._target:g}: {reasons}")
        tuned = self._climbed(min(self._other_elastic(found[0]), key=lambda option: option.hours))
        return Plan(
            best=tuned,
            options=tuple(found),
            sensitivity=tuple(self._sensitivity(tuned)),
            baselines=tuple(o for c in self._baselines(tuned.candidate) if (o := self._try(c))),
            refused=tuple(self.refused),
            warnings=tuple(_warnings(tuned, self.section)),
        )

    @property
    def _target(self) -> float:
        return self.section.staleness

    @property
    def _taus_s(self) -> tuple[float, ...]:
        switch = self.speeds.to_training_s + self.speeds.to_rollout_s
        return tuple(round(times * switch, 2) for times in TAUS_IN_SWITCHES)

    def _grid(self) -> Iterator[Candidate]:
        for nodes in cell_layouts(self.section):
            for phi, mu in schedules_at(self._target, self.schedule.groups_per_step):
                if self.section.shuffle == "global" and mu > 1:
                    continue
                yield Candidate(
                    nodes=nodes,
                    phi=phi,
                    mu=mu,
                    rho_min=self.schedule.rho_min,
                    tau_s=self._taus_s[2],
                )

    def _climbed(self, best: Option) -> Option:
        """From `best` to what one number alone makes better, until none does."""
        while True:
            better = min((o for _, o in self._sensitivity(best)), key=lambda option: option.hours)
            if better.hours >= best.hours:
                return best
            best = better

    def _other_elastic(self, best: Option) -> list[Option]:
        """The best, and the same under the other policy whose cells move one by one."""
        other = self._try(replace(best.candidate, policy="gyre+"))
        return [best] if other is None else [best, other]

    def _sensitivity(self, best: Option) -> Iterator[tuple[str, Option]]:
        chosen = best.candidate
        others: dict[str, list[Candidate]] = {
            "rho_min": [replace(chosen, rho_min=value) for value in RHO_MINS],
            "tau_s": [replace(chosen, tau_s=value) for value in self._taus_s],
            "phi, mu": [
                replace(chosen, phi=phi, mu=mu)
                for phi, mu in schedules_at(self._target, self.schedule.groups_per_step)
                if self.section.shuffle == "none" or mu == 1
            ],
            "cells": [replace(chosen, nodes=nodes) for nodes in cell_layouts(self.section)],
        }
        for name, candidates in others.items():
            for candidate in candidates:
                option = self._try(candidate)
                if option is not None:
                    yield name, option

    def _baselines(self, best: Candidate) -> Iterator[Candidate]:
        """async in halves at (E[d], 1) and colocate at (0, 2 E[d] + 1), neither streaming."""
        groups = Fraction(self._target).limit_denominator(1000) * self.schedule.groups_per_step
        if groups.denominator == 1:
            yield replace(
                best,
                policy="async",
                phi=self._target,
                mu=1,
                streaming=False,
                training_cells=max(1, len(best.nodes) // 2),
            )
        if (2 * self._target).is_integer():
            mu = round(2 * self._target) + 1
            yield replace(best, policy="colocate", phi=0.0, mu=mu, streaming=False)

    def _try(self, candidate: Candidate) -> Option | None:
        """None for a candidate that cannot work; `refused` then says why."""
        if candidate not in self._tried:
            try:
                self._tried[candidate] = self._simulate(candidate)
            except (SpecError, StalledError) as error:
                self.refused.append((describe(candidate), str(error)))
                self._tried[candidate] = None
        return self._tried[candidate]

    def _simulate(self, candidate: Candidate) -> Option:
        spec = self._job(candidate)
        outcome = simulate_job(
            spec,
            self.workload(spec, self.section.seed),
            self.speeds,
            candidate.nodes,
            until_step=min(spec.schedule.num_steps, MAX_SIMULATED_STEPS),
        )
        summary = summarize(spec, outcome, self.section.seed)
        hours = summary.total_h * self.schedule.num_steps / len(summary.step_h)
        return Option(candidate=candidate, hours=hours, summary=summary)

    def _job(self, candidate: Candidate) -> JobSpec:
        raw: dict[str, Any] = {
            **self.schedule.model_dump(),
            "policy": candidate.policy,
            "phi": candidate.phi,
            "mu": candidate.mu,
            "rho_min": candidate.rho_min,
            "tau_s": candidate.tau_s,
            "streaming": candidate.streaming,
            "training_cells": candidate.training_cells,
        }
        cells = NodesSection(
            nodes=candidate.nodes, executions_per_node=self.section.executions_per_node
        )
        return job_spec(raw, cells)


def describe(candidate: Candidate) -> str:
    return (
        f"{candidate.policy}, {len(candidate.nodes)} cells of {candidate.nodes[0]:g}, "
        f"phi {candidate.phi:g}, mu {candidate.mu}"
    )


def cell_layouts(section: PlanSection) -> list[tuple[float, ...]]:
    """Equal cells, of once, twice, ... the smallest size, at least two of them; only those that
    leave no room for one more of the smallest."""
    smallest, layouts = section.min_nodes_per_cell, []
    size = smallest
    while (count := int(section.nodes // size)) >= 2:
        if section.nodes - count * size < smallest:
            layouts.append((size,) * count)
        size += smallest
    return layouts


def schedules_at(staleness: float, groups_per_step: int) -> list[tuple[float, int]]:
    """Every (phi, mu) whose mean staleness it is, phi B whole, shortest burst first."""
    found = []
    for mu in range(1, int(2 * staleness) + 2):
        phi = staleness - (mu - 1) / 2
        groups = Fraction(phi).limit_denominator(10_000) * groups_per_step
        if phi >= 0 and groups.denominator == 1:
            found.append((phi, mu))
    return found


def _refuse_hopeless(section: PlanSection, schedule: ScheduleSection) -> None:
    """What the paper's limitations rule out, before anything is simulated."""
    if section.nodes < 2 * section.min_nodes_per_cell:
        raise SpecError(
            f"plan.nodes: {section.nodes:g} nodes make no two cells of "
            f"{section.min_nodes_per_cell:g}; cells that train while others serve need at least "
            "two: add nodes, or use policy colocate with phi 0"
        )
    if section.shuffle == "global" and schedule.streaming and schedule.mu > 1:
        raise SpecError(
            f"plan.shuffle: global, but the schedule streams with mu {schedule.mu}: a burst's "
            "first step is over before its last group is there; use schedule.mu: 1, or "
            "streaming: false"
        )
    if not schedules_at(section.staleness, schedule.groups_per_step):
        raise SpecError(
            f"plan.staleness: {section.staleness:g} is no phi + (mu - 1)/2 with phi * "
            f"{schedule.groups_per_step} whole; choose a multiple of 0.5"
        )


def _warnings(best: Option, section: PlanSection) -> Iterator[str]:
    count = len(best.candidate.nodes)
    if count < FEW_CELLS:
        yield (
            f"{count} cells: the paper evaluates none with fewer than {FEW_CELLS}; coarse cells "
            "leave little to hand over while the rest still serve"
        )
    used = sum(best.candidate.nodes)
    if used < section.nodes:
        yield f"{section.nodes - used:g} of {section.nodes:g} nodes are left over"
    if section.shuffle == "global":
        yield "global shuffle: only mu = 1 was considered, a longer burst may be faster without it"
    if best.summary.training_idle > 0.5:
        yield (
            f"training cells compute {1 - best.summary.training_idle:.0%} of their time: the job "
            "is bound by rollout, more slots help more than more training"
        )
