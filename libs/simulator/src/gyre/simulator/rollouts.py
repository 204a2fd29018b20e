"""Runner and evaluator: executions start, end and are scored; groups become ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.simulator.outcome import GroupRun
from gyre.simulator.workload import Workload

if TYPE_CHECKING:
    from gyre.simulator.engine import Simulation

_STARTED = run_events.Started(execution="e", group="g", task="t")
_TERMINATED = run_events.Terminated(
    execution="e",
    attempt=1,
    reason="completed",
    exit_code=0,
    signal=None,
    workspace=None,
    duration_s=0.0,
)
_EVALUATED = score_events.Evaluated(
    execution="e", attempt=1, evaluation="v", artifact="a", branch="", reward=0.0
)
_GROUP_READY = group_events.GroupReady(
    group="g", task="t", version=0, lineage=1, outcomes=(), zero_weight=False
)

# In the words of `terminated`, why an execution was ended.
_REASONS: dict[type[Body], run_events.TerminationReason] = {
    sched.ExecutionsCancelled: "cancelled",
    sched.SurplusCancelled: "surplus",
    sched.GroupDropped: "dropped",
}


class Rollouts:
    """ready: told of each group that became ready."""

    def __init__(
        self, world: Simulation, workload: Workload, ready: Callable[[GroupRun], None]
    ) -> None:
        self._world, self._workload, self._tell = world, workload, ready
        self._started, self._terminated = world.facts_like(_STARTED), world.facts_like(_TERMINATED)
        self._evaluated = world.facts_like(_EVALUATED)
        self._group_ready = world.facts_like(_GROUP_READY)
        self._alive: dict[str, tuple[GroupRun, int]] = {}
        self.reactions: dict[type[Body], Callable[[Any], None]] = {
            sched.Dispatched: self._dispatched,
            sched.StartOrdered: self._ordered,
            sched.ExecutionsCancelled: self._cancelled,
            sched.SurplusCancelled: self._cancelled,
            sched.GroupDropped: self._cancelled,
        }

    def _dispatched(self, body: sched.Dispatched) -> None:
        groups = self._world.outcome.groups
        # A policy may start them in another order: group n is the nth that was made.
        for plan in sorted(body.groups, key=lambda plan: (len(plan.group), plan.group)):
            number = len(groups)
            work = self._workload.group(number, len(plan.executions))
            group = groups[plan.group] = GroupRun(
                name=plan.group,
                number=number,
                executions=plan.executions,
                version=body.version,
                dispatched_s=self._world.now,
                durations=work.durations,
                endings=work.endings,
                micro_steps=work.micro_steps,
                left=len(plan.executions),
                unscored=len(plan.executions),
            )
            for place, execution in enumerate(plan.executions):
                self._alive[execution] = group, place

    def _ordered(self, body: sched.StartOrdered) -> None:
        world = self._world
        for order in body.orders:
            if world.speeds.start_s > 0:
                world.later(world.speeds.start_s, self._start, order)
            else:
                self._start(order)

    def _start(self, order: sched.StartOrder) -> None:
        world, name = self._world, order.execution
        found = self._alive.get(name)
        if found is None:  # cancelled before its harness was up
            return
        group, place = found
        world.fact(self._started(execution=name, group=order.group, task=order.task))
        if group.started_s is None:
            group.started_s = world.now
        world.later(group.durations[place], self._end, name)

    def _end(self, name: str) -> None:
        found = self._alive.pop(name, None)
        if found is None:  # cancelled meanwhile
            return
        world, (group, place) = self._world, found
        reason = "completed" if group.endings[place] == "none" else "timeout"
        duration_s = group.durations[place]
        world.fact(self._terminated(execution=name, reason=reason, duration_s=duration_s))
        self._one_less(group)
        if world.speeds.scoring_s > 0:
            world.later(world.speeds.scoring_s, self._score, (name, group))
        else:
            self._score((name, group))

    def _score(self, whose: tuple[str, GroupRun]) -> None:
        name, group = whose
        self._world.fact(self._evaluated(execution=name))
        self._settle(group)

    def _settle(self, group: GroupRun) -> None:
        """One more execution of the group has its final disposition."""
        group.unscored -= 1
        if group.unscored == 0:
            self._world.later(self._world.speeds.ready_s, self._ready, group)

    def _ready(self, group: GroupRun) -> None:
        if group.dropped:
            return
        group.ready_s = self._world.now
        self._world.fact(self._group_ready(group=group.name, version=group.version))
        self._tell(group)

    def _cancelled(
        self, body: sched.ExecutionsCancelled | sched.SurplusCancelled | sched.GroupDropped
    ) -> None:
        """Queued ones are over with the decision; running ones are ended at once, unscored."""
        reason = _REASONS[type(body)]
        for name in body.running:
            if name in self._alive:
                self._world.fact(self._terminated(execution=name, reason=reason))
        for name in (*body.queued, *body.running):
            found = self._alive.pop(name, None)
            if found is not None:
                group, _ = found
                group.dropped |= isinstance(body, sched.GroupDropped)
                self._one_less(group)
                self._settle(group)

    def _one_less(self, group: GroupRun) -> None:
        group.left -= 1
        if group.left == 0:
            group.ended_s = self._world.now
