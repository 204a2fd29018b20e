"""What a run was, folded from its facts and calls: the figures and series of the report.

Pure: an event and its time in, numbers out. The same fold serves `gyre report`, the demo and tests.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.events import steps as step_events
from gyre.contracts.job import CellsSection, EmulationSection
from gyre.core.delivery import Deliveries
from gyre.core.execution import ENDED_BY_SCHEDULER
from gyre.core.forks import ForkReport, Forks
from gyre.core.objective_report import ObjectiveReport
from gyre.core.scheduling import JobState, evolve, ledger
from gyre.core.selection import Selection
from gyre.core.staleness import expected_staleness, group_staleness, mean_staleness
from gyre.core.switches import Switches
from gyre.core.trainer_times import trainer_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Mean reward of `num` held-out executions. error: standard error of the mean. num_excluded:
    executions without a valid score, not in the mean."""

    mean: float
    error: float
    num: int
    num_excluded: int


@dataclass(slots=True, kw_only=True)
class StepRow:
    """One optimizer step. reward: mean over the valid outcomes of the groups it consumed."""

    step: int
    version: int
    reward: float | None
    statistics: dict[str, Any]
    members: tuple[int, ...]
    ended_at: float


@dataclass(slots=True)
class RunReport:
    """Fold of one job. Mutated by `fold_fact` and `fold_call` only. Times are unix seconds."""

    job: str
    state: JobState = field(init=False)
    started_at: float | None = None
    ended_at: float | None = None
    steps: list[StepRow] = field(default_factory=list)
    waterlevel: list[tuple[float, int, int]] = field(default_factory=list)
    roles: list[tuple[float, int, str]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    num_calls: int = 0
    num_calls_failed: int = 0
    num_malformed: int = 0
    num_role_changes: int = 0
    sampled_tokens: int = 0
    rerouted: set[str] = field(default_factory=set)
    trained_cells: set[int] = field(default_factory=set)
    selection: Selection = field(default_factory=Selection)
    forks: Forks = field(default_factory=Forks)
    switches: Switches = field(default_factory=Switches)
    objective: ObjectiveReport = field(default_factory=ObjectiveReport)
    deliveries: Deliveries = field(default_factory=Deliveries)
    _phase_of: dict[str, str] = field(default_factory=dict)
    _heldout: dict[str, dict[str, float | None]] = field(default_factory=dict)
    _group_rewards: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = JobState(job=self.job)

    def fold_fact(self, sequence: int, envelope: Envelope) -> None:
        body, time = envelope.body, envelope.time
        evolve(self.state, sequence, body)
        self.selection.fold(body)
        self.switches.fold_fact(body, time)
        self.deliveries.fold(body)
        self.started_at = time if self.started_at is None else self.started_at
        self.ended_at = time
        self._fold_outcome(body)
        self._fold_steps(body, time)
        self._fold_roles(body, time)
        if self.state.cells:
            level = self.state.training.waterlevel, ledger.rollout_capacity(self.state)
            if not self.waterlevel or self.waterlevel[-1][1:] != level:
                self.waterlevel.append((time, *level))

    def _fold_outcome(self, body: Body) -> None:
        """What became of executions: their ends, their scores, what failed."""
        match body:
            case sched.Dispatched():
                self._remember_groups(body)
            case score_events.Evaluated():
                self._score(body.execution, body.reward)
            case score_events.PlaceholderScored():
                self.failures["placeholder (nothing to evaluate)"] += 1
                self._score(body.execution, 0.0)
            case score_events.ExecutionExcluded():
                ended = body.reason if body.reason in ENDED_BY_SCHEDULER else "no valid score"
                self.failures[f"excluded ({ended})"] += 1
                self._score(body.execution, None)
            case score_events.EvaluationFailed():
                self.failures["evaluation failed, tried again"] += 1
            case run_events.Terminated() if body.reason != "completed":
                self.failures[f"execution {body.reason}"] += 1
            case run_events.AttemptFailed():
                self.failures["attempt failed (infrastructure)"] += 1
            case group_events.GroupReady():
                self._group_rewards[body.group] = [
                    outcome.reward
                    for outcome in body.outcomes
                    if outcome.disposition == "valid" and outcome.reward is not None
                ]
            case _:
                pass

    def _fold_steps(self, body: Body, time: float) -> None:
        match body:
            case step_events.StepCompleted() if self._counts(body):
                self._step(body, time)
            case sched.Restored():
                # Steps after the checkpoint are void: their groups are consumed again.
                self.steps = [row for row in self.steps if row.version <= body.version]
                self.objective.restore(body.version)
                self.deliveries.restore(body.version)
            case _:
                pass

    def _fold_roles(self, body: Body, time: float) -> None:
        match body:
            case cell_events.RoleChanged():
                self.num_role_changes += 1
                self.roles.append((time, body.cell, body.role))
            case sched.TransitionStarted():
                self.roles.append((time, body.cell, "switching"))
            case sched.CellLost() | sched.CellReleased():
                self.roles.append((time, body.cell, "offline"))
            case sched.BurstEnded():
                leaving = [c.cell for c in self.state.in_order if c.role == "to_rollout"]
                self.roles += [(time, cell, "switching") for cell in leaving]
            case _:
                pass

    def fold_call(self, envelope: Envelope) -> None:
        self.forks.fold(envelope.body)
        self.switches.fold_call(envelope)
        match envelope.body:
            case call_events.CallRecorded() as call:
                self.num_calls += 1
                self.num_malformed += call.num_malformed_tool_calls
                self.num_calls_failed += call.outcome == "failed"
                if call.outcome != "committed":
                    self.failures[f"call {call.outcome}"] += 1
                if call.outcome == "committed" and call.execution not in self._phase_of:
                    self.sampled_tokens += len(call.output_ids)
            case call_events.CallRerouted() as moved:
                self.rerouted.add(moved.call)
            case call_events.CallUndelivered():
                self.failures["call undelivered"] += 1
            case _:
                pass

    def fork_report(self) -> ForkReport:
        """Forks and tool calls so far, by the job's own limits."""
        return self.forks.report(self.state.required_spec.alarms)

    def alarms(self) -> tuple[str, ...]:
        """What somebody should look at, a line each."""
        return (
            *self.objective.alarms(),
            *self.deliveries.alarms(),
            *self.fork_report().alarms,
        )

    def measurements(self) -> list[tuple[int, Score]]:
        """(version, score) of each held-out measurement made while the job trained."""
        names = [name for name in self._heldout if name.startswith("version ")]
        scores = [(int(name.removeprefix("version ")), self.heldout(name)) for name in names]
        return [(version, score) for version, score in scores if score is not None]

    def heldout(self, phase: str) -> Score | None:
        """Score of `heldout_before` or `heldout_after`; None when that phase was not run."""
        rewards = self._heldout.get(phase)
        if not rewards:
            return None
        valid = [reward for reward in rewards.values() if reward is not None]
        if not valid:
            return None
        mean = sum(valid) / len(valid)
        variance = sum((reward - mean) ** 2 for reward in valid) / max(1, len(valid) - 1)
        return Score(
            mean=mean,
            error=math.sqrt(variance / len(valid)),
            num=len(valid),
            num_excluded=len(rewards) - len(valid),
        )

    def summary(self) -> dict[str, Any]:
        """The keys of report.json. Counts unless the name says otherwise; wall_s in seconds."""
        schedule = self.state.required_spec.schedule
        before, after = self.heldout("heldout_before"), self.heldout("heldout_after")
        staleness = mean_staleness(self.state.groups.values())
        forks = self.fork_report()
        return {
            "job": self.job,
            "status": self.state.status,
            "reward_before": before.mean if before else None,
            "reward_before_error": before.error if before else None,
            "reward_after": after.mean if after else None,
            "reward_after_error": after.error if after else None,
            "heldout_tasks": before.num if before else 0,
            "heldout_between": [
                {"version": version, "reward": score.mean, "error": score.error, "tasks": score.num}
                for version, score in self.measurements()
            ],
            "steps": len(self.steps),
            "executions": self.state.training.terminated + self.state.heldout.terminated,
            "calls": self.num_calls,
            "calls_rerouted": len(self.rerouted),
            "calls_failed": self.num_calls_failed,
            "malformed_tool_calls": self.num_malformed,
            "forks": forks.num_forks,
            "unexplained_forks": forks.num_unexplained,
            "unexplained_fork_share": forks.unexplained_share,
            "alarms": list(self.alarms()),
            "role_changes": self.num_role_changes,
            "switches": self.switches.summary(self.started_at or 0.0),
            "cells_that_trained": sorted(self.trained_cells),
            "mean_staleness": staleness,
            "expected_staleness": expected_staleness(schedule.phi, schedule.mu),
            "sampled_tokens": self.sampled_tokens,
            "trained_tokens": self.objective.num_trained_targets,
            "clip_low": self.state.required_spec.objective.clip_low,
            "clip_high": self.state.required_spec.objective.clip_high,
            "clip_fraction": [row.statistics["clip_fraction"] for row in self.steps],
            "reward_by_step": [row.reward for row in self.steps],
            **trainer_times(row.statistics for row in self.steps),
            **self.deliveries.summary(),
            **self.objective.summary(),
            **self.selection.summary(),
            "failures": dict(sorted(self.failures.items())),
            "emulation": emulation(self.state.required_spec.cells),
            "wall_s": (self.ended_at or 0.0) - (self.started_at or 0.0),
        }

    def staleness_by_group(self) -> list[tuple[str, int]]:
        """(group, d) of every claimed group, in the order of dispatch."""
        rows = [(name, group_staleness(group)) for name, group in self.state.groups.items()]
        return [(name, d) for name, d in rows if d is not None]

    def _remember_groups(self, body: sched.Dispatched) -> None:
        if body.kind == "heldout":
            between = self.state.phase == "training"
            measurement = f"version {body.version}" if between else self.state.phase
            rewards = self._heldout.setdefault(measurement, {})
            for plan in body.groups:
                for execution in plan.executions:
                    self._phase_of[execution] = measurement
                    rewards[execution] = None

    def _score(self, execution: str, reward: float | None) -> None:
        phase = self._phase_of.get(execution)
        if phase is not None:
            self._heldout[phase][execution] = reward

    def _counts(self, body: step_events.StepCompleted) -> bool:
        """The state has taken it: it is not of a core that only seemed lost."""
        return (body.lineage, body.version) == (self.state.lineage, self.state.version)

    def _step(self, body: step_events.StepCompleted, time: float) -> None:
        rewards = [
            reward
            for name, group in self.state.groups.items()
            if group.batch == body.batch
            for reward in self._group_rewards.get(name, [])
        ]
        self.trained_cells |= {owner.cell for owner in body.micro_steps}
        self.objective.fold(body)
        self.deliveries.complete(body)
        self.steps.append(
            StepRow(
                step=body.step,
                version=body.version,
                reward=sum(rewards) / len(rewards) if rewards else None,
                statistics=body.statistics.model_dump(),
                members=body.members,
                ended_at=time,
            )
        )


def emulation(cells: CellsSection) -> dict[str, list[float | None]]:
    """Emulated speeds of the job's cells, elastic ones first, tokens a second by name; None where a
    cell goes at the machine's own speed. Empty when nothing is emulated."""
    each = [cells.emulation(place) or EmulationSection() for place in range(cells.num_cells)]
    speeds = {
        name: [getattr(section, name) for section in each] for name in EmulationSection.model_fields
    }
    return {name: values for name, values in speeds.items() if any(values)}
