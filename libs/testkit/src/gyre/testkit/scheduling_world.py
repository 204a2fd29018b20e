"""A small discrete-event world around the scheduler's decider: virtual time, no I/O.

It plays every other service just well enough to exercise the law: executions take the time that
`durations` says, groups become ready after scoring, cells switch roles with a delay, packing draws
a group whenever the micro-step queue is low, cells claim micro-steps one at a time. Every fact
goes through `evolve`; every answer of `next_decision` is folded too, and kept with its time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.job import JobSpec
from gyre.core.scheduling import JobState, evolve, next_decision, next_wake

NO_STATISTICS = cell_events.StepStatistics(
    loss=0.0,
    grad_norm=0.0,
    lr=0.0,
    clip_fraction=0.0,
    mean_ratio=1.0,
    mean_abs_logprob_diff=0.0,
    max_abs_logprob_diff=0.0,
    entropy=0.0,
    num_targets=1,
    num_tokens=1,
    seconds=0.0,
)


@dataclass(slots=True, kw_only=True)
class Timings:
    """Seconds of virtual time."""

    start: float = 0.1
    scoring: float = 0.2
    switch: float = 0.5
    micro_step: float = 1.0
    micro_steps_per_group: int = 1
    update: float = 0.2
    publish: float = 0.5
    boot: float = 1.0


@dataclass
class World:
    """Run one job to its end. durations: execution number (0, 1, ...) -> seconds it runs."""

    spec: JobSpec
    durations: Callable[[int], float]
    timings: Timings = field(default_factory=Timings)
    on_fact: Callable[[JobState, Body, float], None] = lambda state, body, now: None
    heldout_tasks: tuple[str, ...] = ()

    state: JobState = field(init=False)
    now: float = 0.0
    log: list[tuple[int, float, Body]] = field(default_factory=list)
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)
    _left: dict[str, set[str]] = field(default_factory=dict)
    _ready: list[str] = field(default_factory=list)
    _emitted: int = 0
    _closed: bool = False
    _busy: set[int] = field(default_factory=set)
    _num_executions: int = 0

    def run(self, max_events: int = 200_000) -> JobState:
        """Live through the job; returns its last state. Raises AssertionError when it stalls."""
        self.state = JobState(job="job")
        tasks = tuple(f"t{i}" for i in range(self.spec.schedule.groups_per_step))
        self.fact(
            sched.JobSubmitted(spec=self.spec, train_tasks=tasks, heldout_tasks=self.heldout_tasks)
        )
        num, num_cells = self.spec.cells.count, self.spec.cells.num_cells
        cells, pool = tuple(range(num)), tuple(range(num, num_cells))
        self.fact(sched.JobStarted(based_on=0, now=0.0, cells=cells, pool=pool, lineage=1))
        for cell in (*cells, *pool):
            self.later(self.timings.boot, partial(self._boot, cell))
        for _ in range(max_events):
            self._decide()
            if self.state.finished:
                return self.state
            self._advance()
        raise AssertionError(f"no end after {max_events} events")

    def fact(self, body: Body) -> None:
        """Append and fold one fact, then let the world react to it."""
        sequence = len(self.log) + 1
        self.log.append((sequence, self.now, body))
        evolve(self.state, sequence, body)
        self.on_fact(self.state, body, self.now)
        reaction = self._REACTIONS.get(type(body))
        if reaction is not None:
            reaction(self, body)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._ticket), action))

    def decisions(self, kind: type[Body]) -> list[Body]:
        return [body for _, _, body in self.log if isinstance(body, kind)]

    def _decide(self) -> None:
        while (decision := next_decision(self.state, self.now)) is not None:
            self.fact(decision)

    def _advance(self) -> None:
        wake = next_wake(self.state)
        if self._heap and (wake is None or wake <= self.now or self._heap[0][0] <= wake):
            self.now, _, action = heapq.heappop(self._heap)
            action()
        elif wake is not None and wake > self.now:
            self.now = wake
        else:
            raise AssertionError(f"stalled at {self.now}: {self.state.phase} {self.state.batch}")

    # --- other services ---

    def _boot(self, cell: int) -> None:
        if not self.state.cells[cell].pool:
            self.fact(cell_events.TrainerReady(cell=cell, pid=1))
        self._role(cell, "rollout")

    def _role(self, cell: int, role: cell_events.CellRole) -> None:
        self.fact(
            cell_events.RoleChanged(
                cell=cell,
                role=role,
                version=self.state.published,
                lineage=self.state.lineage,
                engine_url=None,
                duration_s=0.0,
            )
        )

    def _world_formed(self, body: sched.WorldFormed) -> None:
        for cell in body.cells:
            self.later(0.05, partial(self._join_world, cell, body.epoch))

    def _join_world(self, cell: int, epoch: int) -> None:
        self.fact(cell_events.WorldJoined(cell=cell, epoch=epoch))

    def _dispatched(self, body: sched.Dispatched) -> None:
        if body.kind == "training":
            self._left.update({plan.group: set(plan.executions) for plan in body.groups})

    def _ordered(self, body: sched.StartOrdered) -> None:
        for order in body.orders:
            number, self._num_executions = self._num_executions, self._num_executions + 1
            self.later(self.timings.start, partial(self._start, order, number))

    def _start(self, order: sched.StartOrder, number: int) -> None:
        self.fact(run_events.Started(execution=order.execution, group=order.group, task=order.task))
        self.later(self.durations(number), lambda: self._terminate(order))

    def _terminate(self, order: sched.StartOrder) -> None:
        self.fact(
            run_events.Terminated(
                execution=order.execution,
                attempt=1,
                reason="completed",
                exit_code=0,
                signal=None,
                workspace=None,
                duration_s=1.0,
            )
        )
        left = self._left.get(order.group)
        if left is None:
            self.later(self.timings.scoring, partial(self._score, order.execution))
            return
        left.discard(order.execution)
        if not left:
            self.later(self.timings.scoring, partial(self._group_ready, order.group))

    def _score(self, execution: str) -> None:
        self.fact(
            score_events.Evaluated(
                execution=execution,
                attempt=1,
                evaluation="e",
                artifact="a",
                branch="",
                reward=0.0,
            )
        )

    def _group_ready(self, group: str) -> None:
        self.fact(
            group_events.GroupReady(
                group=group, task="t", version=0, lineage=1, outcomes=(), zero_weight=False
            )
        )
        self._ready.append(group)
        self._pack()

    def _transition(self, body: sched.TransitionStarted) -> None:
        self.later(self.timings.switch, lambda: self._enter_training(body.cell))

    def _enter_training(self, cell: int) -> None:
        if self.state.cells[cell].role != "to_training":
            return
        self._role(cell, "training")
        self._join_batch(cell)

    def _batch_opened(self, body: sched.BatchOpened) -> None:
        self._emitted, self._closed = 0, False
        for cell in self.state.order:
            if self.state.cells[cell].role == "training":
                self._join_batch(cell)
        self._pack()

    def _join_batch(self, cell: int) -> None:
        batch = self.state.batch
        if batch is None or batch.members is not None or cell in batch.joined:
            return
        self.fact(
            cell_events.BatchJoined(
                cell=cell, batch=batch.batch, version=batch.version, lineage=self.state.lineage
            )
        )
        self._claim(cell)

    def _pack(self) -> None:
        """Draw groups while the queue of unclaimed micro-steps is below one per training cell."""
        batch, needed = self.state.batch, self.spec.schedule.groups_per_step
        while batch is not None and self._ready and not self._closed:
            if self._emitted - len(batch.owners) >= max(1, len(batch.joined)):
                return
            group = min(self._ready)
            self._ready.remove(group)
            self.fact(group_events.GroupClaimed(group=group, batch=batch.batch))
            self._emitted += self.timings.micro_steps_per_group
            if batch.num_claimed_groups == needed:
                self._closed = True
                self.fact(
                    group_events.StreamClosed(
                        batch=batch.batch,
                        groups=(),
                        num_micro_steps=self._emitted,
                        num_targets=1,
                    )
                )
            for cell in tuple(batch.joined):
                self._claim(cell)

    def _claim(self, cell: int) -> None:
        batch = self.state.batch
        if batch is None or cell in self._busy or cell not in batch.joined:
            return
        free = next((i for i in range(self._emitted) if i not in batch.owners), None)
        if free is None:
            return
        self._busy.add(cell)
        self.fact(
            cell_events.MicroStepClaimed(
                batch=batch.batch, index=free, cell=cell, epoch=self.state.epoch
            )
        )
        self.later(self.timings.micro_step, lambda: self._trained(cell))
        self._pack()

    def _trained(self, cell: int) -> None:
        self._busy.discard(cell)
        self._claim(cell)
        self._finish_step()

    def _window_closed(self, body: sched.JoinWindowClosed) -> None:
        self._finish_step()

    def _finish_step(self) -> None:
        batch = self.state.batch
        if batch is None or batch.members is None or self._busy & set(batch.members):
            return
        self.later(self.timings.update, lambda: self._step(batch.batch))

    def _step(self, name: str) -> None:
        batch = self.state.batch
        if batch is None or batch.batch != name or batch.members is None:
            return
        owners = tuple(
            cell_events.MicroStepOwner(index=i, cell=c, epoch=e)
            for i, (c, e) in batch.owners.items()
        )
        self.fact(
            cell_events.StepCompleted(
                batch=name,
                step=batch.step,
                version=batch.version + 1,
                lineage=self.state.lineage,
                epoch=self.state.epoch,
                members=batch.members,
                micro_steps=owners,
                statistics=NO_STATISTICS,
            )
        )

    def _burst_ended(self, body: sched.BurstEnded) -> None:
        self.later(self.timings.publish, self._publish)
        for cell in self.state.in_order:
            if cell.role == "to_rollout":
                delay = self.timings.switch + (self.timings.publish if cell.index == 0 else 0.0)
                self.later(delay, partial(self._role, cell.cell, "rollout"))

    def _publish(self) -> None:
        self.fact(
            cell_events.WeightsPublished(
                version=self.state.version, lineage=self.state.lineage, path="", confirmed_by=()
            )
        )

    _REACTIONS: ClassVar[dict[type[Body], Callable[[World, Any], None]]] = {
        sched.WorldFormed: _world_formed,
        sched.Dispatched: _dispatched,
        sched.StartOrdered: _ordered,
        sched.TransitionStarted: _transition,
        sched.BatchOpened: _batch_opened,
        sched.JoinWindowClosed: _window_closed,
        sched.BurstEnded: _burst_ended,
    }
