"""A small discrete-event world around the scheduler's decider: virtual time, no I/O.

It plays every other service just well enough to exercise the law: beside the rollouts
(`scheduling_rollouts`), cells switch roles with a delay, packing draws a group whenever the
micro-step queue is low, cells claim micro-steps one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.groups import leaves_room
from gyre.core.scheduling import JobState
from gyre.core.scheduling.state import Batch
from gyre.testkit.facts import role_changed
from gyre.testkit.scheduling_rollouts import Rollouts, Timings

__all__ = ["Timings", "World"]


@dataclass
class World(Rollouts):
    """Rollouts, with cells that switch roles and train."""

    _emitted: int = 0
    _closed: bool = False
    _busy: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """The job is submitted and has its cells, which boot."""
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

    # --- other services ---

    def _boot(self, cell: int) -> None:
        if not self.state.cells[cell].pool:
            self.fact(cell_events.TrainerReady(cell=cell, pid=1))
        self._role(cell, "rollout")

    def _role(self, cell: int, role: cell_events.CellRole) -> None:
        self.fact(role_changed(cell, role, self.state.published, self.state.lineage))

    def _world_formed(self, body: sched.WorldFormed) -> None:
        for cell in body.cells:
            self.later(0.05, partial(self._join_world, cell, body.epoch))

    def _join_world(self, cell: int, epoch: int) -> None:
        self.fact(cell_events.WorldJoined(cell=cell, epoch=epoch))

    def _transition(self, body: sched.TransitionStarted) -> None:
        if body.to == "rollout":
            self.later(self.timings.switch, partial(self._role, body.cell, "rollout"))
            return
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
            group = self._drawable(batch)
            if group is None:
                return
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

    def _drawable(self, batch: Batch) -> str | None:
        """The oldest ready group, as the trajectory service chooses it."""
        schedule, groups = self.spec.schedule, self.state.groups
        bound = schedule.max_staleness
        if bound is None:
            return min(self._ready)
        if schedule.on_stale == "drop":
            fresh = (g for g in self._ready if batch.version - groups[g].version <= bound)
            return min(fresh, default=None)
        oldest = min(self._ready)
        room = leaves_room(
            {version: len(names) for version, names in self.state.unclaimed.items()},
            groups[oldest].version,
            version=batch.version,
            bound=bound,
            slots=schedule.groups_per_step - batch.num_claimed_groups,
            batch=schedule.groups_per_step,
        )
        return oldest if room else None

    def _claim(self, cell: int) -> None:
        batch = self.state.batch
        if batch is None or cell in self._busy or cell not in batch.joined:
            return
        free = next((i for i in range(self._emitted) if i not in batch.owners), None)
        if free is None:
            return
        self._busy.add(cell)
        self.fact(
            step_events.MicroStepClaimed(
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
            step_events.MicroStepOwner(index=i, cell=c, epoch=e)
            for i, (c, e) in batch.owners.items()
        )
        self.fact(
            step_events.StepCompleted(
                batch=name,
                step=batch.step,
                version=batch.version + 1,
                lineage=self.state.lineage,
                epoch=self.state.epoch,
                members=batch.members,
                micro_steps=owners,
                statistics=step_events.NO_STATISTICS,
            )
        )

    def _burst_ended(self, body: sched.BurstEnded) -> None:
        self.later(self.timings.publish, self._publish)
        for cell in self.state.in_order:
            if cell.role == "to_rollout":
                delay = self.timings.switch + (self.timings.publish if cell.index == 0 else 0.0)
                self.later(delay, partial(self._role, cell.cell, "rollout"))

    def _publish(self) -> None:
        version, lineage = self.state.version, self.state.lineage
        self.fact(
            cell_events.CheckpointSaved(version=version, lineage=lineage, path="", checksum="")
        )
        self.fact(
            cell_events.WeightsPublished(version=version, lineage=lineage, path="", confirmed_by=())
        )

    _REACTIONS: ClassVar[dict[type[Body], Callable[[Any, Any], None]]] = {
        **Rollouts._REACTIONS,
        sched.WorldFormed: _world_formed,
        sched.TransitionStarted: _transition,
        sched.BatchOpened: _batch_opened,
        sched.JoinWindowClosed: _window_closed,
        sched.BurstEnded: _burst_ended,
    }
