"""What a recorded run's facts tell about its executions, its training and its delays."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.events import steps as step_events
from gyre.contracts.job import JobSpec
from gyre.simulator.workload import Ending


class TraceError(ValueError):
    """The log does not hold what a replay under another schedule needs; the message says what."""


@dataclass(slots=True)
class RecordedExecution:
    """Times in unix seconds, None for what did not happen."""

    group: str
    ordered: float | None = None
    started: float | None = None
    ended: float | None = None
    scored: float | None = None
    ending: Ending = "none"


@dataclass(slots=True)
class RecordedMicroStep:
    """Times in unix seconds; claimed and cell of the claim that stood last."""

    executions: tuple[str, ...]
    num_tokens: int
    emitted: float
    claimed: float | None = None
    cell: int | None = None


@dataclass(slots=True)
class TraceFold:
    """Fold of one job's facts; `trace` gives what came of it."""

    spec: JobSpec | None = None
    num_tasks: int | None = None
    phase: str = ""
    training_since: float | None = None
    steps: list[float] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)
    executions: dict[str, RecordedExecution] = field(default_factory=dict)
    micro_steps: dict[str, dict[int, RecordedMicroStep]] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)
    core: int = 0
    _windows: dict[str, float] = field(default_factory=dict)
    _opened: dict[str, float] = field(default_factory=dict)
    _switching: dict[int, float] = field(default_factory=dict)
    _burst_ended: float | None = None
    _entered: dict[int, float] = field(default_factory=dict)
    _leaving: set[int] = field(default_factory=set)
    _training: set[int] = field(default_factory=set)

    def fold(self, time: float, body: Body) -> None:
        """time: unix seconds on the writer's clock."""
        match body:
            case sched.JobSubmitted():
                self.spec, self.num_tasks = body.spec, len(body.train_tasks)
            case sched.JobStarted():
                self.core = body.cells[0]
            case sched.PhaseStarted():
                self.phase = body.phase
                if body.phase == "training":
                    self.training_since = time
            case sched.Dispatched(kind="training"):
                for plan in body.groups:
                    self.groups[plan.group] = list(plan.executions)
                    self.executions |= {
                        name: RecordedExecution(plan.group) for name in plan.executions
                    }
            case sched.StartOrdered():
                for order in body.orders:
                    if order.execution in self.executions:
                        self.executions[order.execution].ordered = time
            case run_events.Started() | run_events.Terminated():
                self._execution(time, body)
            case (
                score_events.Evaluated()
                | score_events.ExecutionExcluded()
                | score_events.PlaceholderScored()
            ):
                if body.execution in self.executions:
                    self.executions[body.execution].scored = time
            case group_events.GroupReady():
                self._ready(time, body.group)
            case _:
                self._fold_training(time, body)

    def _execution(self, time: float, body: run_events.Started | run_events.Terminated) -> None:
        execution = self.executions.get(body.execution)
        if execution is None:
            return
        if isinstance(body, run_events.Terminated):
            execution.ended = time
            execution.ending = "harness" if body.reason == "timeout" else "none"
        elif execution.started is None:
            execution.started = time

    def _ready(self, time: float, name: str) -> None:
        scored = [self.executions[e].scored for e in self.groups.get(name, ())]
        known = [when for when in scored if when is not None]
        if known:
            self.note("ready_s", time - max(known))

    def _fold_training(self, time: float, body: Body) -> None:
        match body:
            case group_events.MicroStepEmitted():
                self.micro_steps.setdefault(body.batch, {})[body.index] = RecordedMicroStep(
                    executions=body.executions, num_tokens=body.num_tokens, emitted=time
                )
            case step_events.MicroStepClaimed():
                step = self.micro_steps.get(body.batch, {}).get(body.index)
                if step is not None:
                    step.claimed, step.cell = time, body.cell
            case sched.BatchOpened():
                self._opened[body.batch] = time
            case cell_events.BatchJoined():
                self._joined(time, body)
            case sched.JoinWindowClosed():
                self._windows[body.batch] = time
            case step_events.StepCompleted():
                self.steps.append(time)
                self.note("closed_to_step_s", time - self._windows.get(body.batch, time))
            case sched.Restored():
                raise TraceError("the job lost its core and was restored: its steps do not add up")
            case _:
                self._fold_roles(time, body)

    def _joined(self, time: float, body: cell_events.BatchJoined) -> None:
        """A cell that was there when the batch opened joins late by join_s, one that enters later
        by pull_s."""
        opened, entered = self._opened.get(body.batch), self._entered.get(body.cell)
        if opened is None:
            return
        if entered is not None and entered > opened:
            self.note("pull_s", time - entered)
        else:
            self.note("join_s", time - opened)

    def _fold_roles(self, time: float, body: Body) -> None:
        match body:
            case sched.TransitionStarted(to="training"):
                self._switching[body.cell] = time
            case sched.BurstEnded():
                self._burst_ended = time
                self._leaving = self._training - set(body.staying_satellites)
            case cell_events.WeightsPublished():
                if self._burst_ended is not None:
                    self.note("publish_s", time - self._burst_ended)
                    self._burst_ended = None
                self._switching[self.core] = time
            case cell_events.RoleChanged(role="training"):
                self._training.add(body.cell)
                self._entered[body.cell] = time
                self.note("to_training_s", time - self._switching.pop(body.cell, time))
            case cell_events.RoleChanged(role="rollout"):
                if body.cell == self.core and body.cell in self._training:
                    self.note("to_rollout_s", time - self._switching.pop(body.cell, time))
                self._training.discard(body.cell)
            case _:
                pass

    def note(self, name: str, seconds: float) -> None:
        self.delays.setdefault(name, []).append(max(0.0, seconds))
