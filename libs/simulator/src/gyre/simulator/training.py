"""Trajectory service and trainers: groups are drawn, micro-steps claimed, updates applied.

- Packing draws the oldest policy version first while fewer micro-steps are queued than cells train,
  and closes the stream after B groups.
- A cell claims one micro-step at a time, whenever it is free.
- The update follows when the join window is closed and every member is done.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.groups import leaves_room
from gyre.core.scheduling.state import Batch
from gyre.simulator.bodies import variants
from gyre.simulator.outcome import GroupRun

if TYPE_CHECKING:
    from gyre.simulator.engine import Simulation

_CLAIMED = step_events.MicroStepClaimed(batch="b", index=0, cell=0, epoch=1)
_EMITTED = group_events.MicroStepEmitted(
    batch="b",
    index=0,
    digest="",
    executions=(),
    num_rows=1,
    row_tokens=1,
    num_tokens=1,
    num_targets=1,
)
_owner = variants(step_events.MicroStepOwner(index=0, cell=0, epoch=1))


class Trainers:
    """The trajectory buffer, the open batch's queue and the training cells of one job."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._claimed, self._emitted = world.facts_like(_CLAIMED), world.facts_like(_EMITTED)
        self._buffer: list[tuple[int, int, GroupRun]] = []
        self._queue: deque[tuple[int, float]] = deque()
        self._idle: list[int] = []
        self._busy: set[int] = set()
        self._num_emitted = 0
        self._closed = False
        self.reactions: dict[type[Body], Callable[[Any], None]] = {
            sched.BatchOpened: self._opened,
            sched.JoinWindowClosed: self._window_closed,
        }

    def group_ready(self, group: GroupRun) -> None:
        heapq.heappush(self._buffer, (group.version, group.number, group))
        self._pack()

    def entered_training(self, cell: int) -> None:
        """It pulls the open batch's weights; the core holds them already."""
        satellite = self._world.state.cells[cell].index > 0
        self._join_in(self._world.speeds.pull_s if satellite else 0.0, cell)

    def _opened(self, body: sched.BatchOpened) -> None:
        self._num_emitted, self._closed = 0, False
        self._queue.clear()
        self._idle.clear()
        for cell in self._world.state.order:
            self._join_in(self._world.speeds.join_s, cell)
        self._pack()

    def _join_in(self, delay: float, cell: int) -> None:
        if delay > 0:
            self._world.later(delay, self._join, cell)
        else:
            self._join(cell)

    def _join(self, cell: int) -> None:
        world = self._world
        batch = world.state.batch
        if batch is None or batch.members is not None or cell in batch.joined:
            return
        if world.state.cells[cell].role != "training":
            return
        world.fact(
            cell_events.BatchJoined(
                cell=cell, batch=batch.batch, version=batch.version, lineage=world.state.lineage
            )
        )
        self._idle.append(cell)
        self._claim()
        self._pack()

    def _pack(self) -> None:
        """Draw groups while the queue of unclaimed micro-steps is below one per training cell."""
        while (batch := self._world.state.batch) is not None and not self._closed:
            if len(self._queue) >= max(1, len(batch.joined)):
                return
            group = self._draw(batch)
            if group is None:
                return
            self._take(batch, group)
            self._claim()

    def _take(self, batch: Batch, group: GroupRun) -> None:
        world = self._world
        group.claimed_s, group.claimed_version = world.now, batch.version
        num_claimed = batch.num_claimed_groups + 1
        world.fact(group_events.GroupClaimed(group=group.name, batch=batch.batch))
        self._emit(batch.batch, group)
        if num_claimed == world.spec.schedule.groups_per_step:
            self._close(batch.batch)

    def _draw(self, batch: Batch) -> GroupRun | None:
        """The oldest ready group, under a staleness bound the oldest that keeps it; None when the
        batch waits for another one."""
        schedule, state = self._world.spec.schedule, self._world.state
        bound = schedule.max_staleness
        while self._buffer:
            version, _, group = self._buffer[0]
            if bound is not None and schedule.on_stale == "wait":
                room = leaves_room(
                    {v: len(names) for v, names in state.unclaimed.items()},
                    version,
                    version=batch.version,
                    bound=bound,
                    slots=schedule.groups_per_step - batch.num_claimed_groups,
                    batch=schedule.groups_per_step,
                )
                if not room:
                    return None
            heapq.heappop(self._buffer)
            # The scheduler drops what is past the bound; a dropped group is never drawn.
            if not group.dropped and (bound is None or batch.version - version <= bound):
                return group
        return None

    def _emit(self, batch: str, group: GroupRun) -> None:
        """A micro-step's tokens stand for its work, a thousand for a node-second."""
        for node_s in group.micro_steps:
            index, tokens = self._num_emitted, max(1, round(1000 * node_s))
            self._world.fact(
                self._emitted(
                    batch=batch, index=index, executions=group.executions, num_tokens=tokens
                )
            )
            self._queue.append((index, node_s))
            self._num_emitted += 1

    def _close(self, batch: str) -> None:
        self._closed = True
        self._world.fact(
            group_events.StreamClosed(
                batch=batch, groups=(), num_micro_steps=self._num_emitted, num_targets=1
            )
        )

    def _claim(self) -> None:
        """Every idle cell takes one micro-step, as long as there are any."""
        world = self._world
        batch = world.state.batch
        while batch is not None and self._idle and self._queue:
            cell = self._idle.pop(0)
            index, node_s = self._queue.popleft()
            self._busy.add(cell)
            nodes = world.nodes[cell]
            seconds = world.speeds.micro_step_s(node_s, nodes)
            world.outcome.busy_node_s += seconds * nodes
            world.fact(
                self._claimed(batch=batch.batch, index=index, cell=cell, epoch=world.state.epoch)
            )
            world.later(seconds, self._trained, cell)

    def _trained(self, cell: int) -> None:
        self._busy.discard(cell)
        if self._world.state.cells[cell].role == "training":
            self._idle.append(cell)
        self._claim()
        self._pack()
        self._update_if_done()

    def _window_closed(self, body: sched.JoinWindowClosed) -> None:
        self._update_if_done()

    def _update_if_done(self) -> None:
        batch = self._world.state.batch
        if batch is not None and batch.members is not None and not self._busy:
            self._world.later(self._world.speeds.update_s, self._step, batch.batch)

    def _step(self, name: str) -> None:
        world = self._world
        batch = world.state.batch
        if batch is None or batch.batch != name or batch.members is None:
            return
        owners = tuple(
            _owner(index=index, cell=cell, epoch=epoch)
            for index, (cell, epoch) in batch.owners.items()
        )
        world.outcome.step_ended_s.append(world.now)
        world.fact(
            step_events.StepCompleted(
                batch=name,
                step=batch.step,
                version=batch.version + 1,
                lineage=world.state.lineage,
                epoch=world.state.epoch,
                members=batch.members,
                micro_steps=owners,
                statistics=step_events.NO_STATISTICS,
            )
        )
