"""The scheduler's world with cells that die, hang, are cut off, leave and come back.

What the cluster's decider and the agents would do is played too: a cell that left the job says so
once it can, is free then, and is taken again while the job is short of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.cluster import ClusterState, next_cell_join
from gyre.testkit.facts import role_changed
from gyre.testkit.scheduling_world import World

Harm = Literal["dead", "hung", "stuck", "cut_off", "engine", "trainer", "released"]
"""dead: its agent is gone for good. hung: it goes on after a while, longer than any deadline.
stuck: as hung, but the agent is heard. cut_off: it works on, unheard, and does not hear.
engine, trainer: that process dies and comes back. released: somebody wants the cell back."""

# Longer than the deadlines of the jobs that are run here.
HUNG_S = 120.0
SILENT_AFTER_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What befalls the cell at place `cell` (modulo their number) with the `nth` fact."""

    nth: int
    cell: int
    harm: Harm


@dataclass
class LosingWorld(World):
    """still: cells that do nothing now. spare: further cells that are online and free."""

    blows: tuple[Blow, ...] = ()
    spare: int = 0
    still: set[int] = field(default_factory=set)
    cut_off: set[int] = field(default_factory=set)

    def begin(self) -> None:
        super().begin()
        self._agents = {
            cell: cell_events.AgentOnline(cell=cell, incarnation="i", host="h", pid=1)
            for cell in range(self.spec.cells.num_cells + self.spare)
        }

    def fact(self, body: Body) -> None:
        number = len(self.log) + 1
        super().fact(body)
        for blow in self.blows:
            if blow.nth == number:
                self.later(0.01, partial(self._strike, blow))

    def _decide(self) -> None:
        super()._decide()
        while self.state.status == "running":
            cluster = ClusterState(
                agents=self._agents, jobs={"job": self.state}, sequence=self.state.sequence
            )
            joining = next_cell_join(cluster, self.now, frozenset(self.still))
            if joining is None:
                return
            self.fact(joining[1])
            super()._decide()

    # --- blows ---

    def _strike(self, blow: Blow) -> None:
        cell = blow.cell % self.spec.cells.num_cells
        if self.state.finished or self.state.present(cell) is None or cell in self.still:
            return
        match blow.harm:
            case "dead" | "hung":
                self.still.add(cell)
                self.later(SILENT_AFTER_S, partial(self._unheard, cell))
                if blow.harm == "hung":
                    self.later(HUNG_S, partial(self._wake, cell))
            case "stuck":
                # In training its own agent's time-outs end it; the scheduler waits for those.
                if self.state.cells[cell].role != "training":
                    self.still.add(cell)
                    self.later(HUNG_S, partial(self._wake, cell))
            case "cut_off":
                self.cut_off.add(cell)
                self.later(SILENT_AFTER_S, partial(self._unheard, cell))
                self.later(2 * SILENT_AFTER_S, partial(self._heard_again, cell))
            case "engine":
                if self.state.cells[cell].engine_up:
                    self._engine_dies(cell)
            case "trainer":
                if self.state.cells[cell].trainer_up:
                    self.fact(cell_events.TrainerLost(cell=cell, error="e"))
                    self.later(self.timings.boot, partial(self._trainer_back, cell))
            case "released":
                self.fact(request_events.ReleaseRequested(cell=cell))

    def _unheard(self, cell: int) -> None:
        if self.state.present(cell) is not None and cell in (self.still | self.cut_off):
            self.fact(sched.AgentSilent(cell=cell, last_heard=self.now - SILENT_AFTER_S))

    def _wake(self, cell: int) -> None:
        """An agent that hung folds what it has missed, and its processes start anew."""
        self.still.discard(cell)
        if self.state.present(cell) is None:
            self._go_offline(cell)
        else:
            self.fact(cell_events.TrainerLost(cell=cell, error="e"))
            self._trainer_back(cell)
            self._engine_dies(cell)

    def _heard_again(self, cell: int) -> None:
        self.cut_off.discard(cell)
        if self.state.present(cell) is None:
            self._go_offline(cell)

    def _engine_dies(self, cell: int) -> None:
        self.fact(cell_events.EngineLost(cell=cell, error="e"))
        self.later(self.timings.boot, partial(self._engine_back, cell))

    def _engine_back(self, cell: int) -> None:
        known = self.state.present(cell)
        if known is None:
            return
        # Until the weights of an ended burst are out, the publication sends `to_rollout` back.
        if known.role in ("booting", "to_training") or (
            known.role == "to_rollout" and self.state.burst is None
        ):
            self._role(cell, "rollout")

    def _trainer_back(self, cell: int) -> None:
        if cell not in self.still and self.state.present(cell) is not None:
            self.fact(cell_events.TrainerReady(cell=cell, pid=2))

    # --- cells that come and go ---

    def _leave(self, body: sched.CellLost | sched.CellReleased) -> None:
        self._busy.discard(body.cell)
        if body.cell not in self.still and body.cell not in self.cut_off:
            self.later(self.timings.switch, partial(self._go_offline, body.cell))

    def _go_offline(self, cell: int) -> None:
        known = self.state.cells[cell]
        if known.gone and known.role != "offline":
            self._role(cell, "offline")

    def _joined(self, body: sched.CellJoined) -> None:
        self.later(self.timings.boot, partial(self._boot, body.cell))

    def _boot(self, cell: int) -> None:
        known = self.state.present(cell)
        if cell not in self.still and known is not None and known.role == "booting":
            super()._boot(cell)

    def _role(self, cell: int, role: cell_events.CellRole) -> None:
        if cell in self.still:
            return
        self.fact(role_changed(cell, role, self.state.durable_version, self.state.lineage))

    def _transition(self, body: sched.TransitionStarted) -> None:
        if body.to == "rollout":
            self._busy.discard(body.cell)
            self.later(self.timings.switch, partial(self._return, body.cell))
        else:
            self.later(self.timings.switch, partial(self._enter_training, body.cell))

    def _enter_training(self, cell: int) -> None:
        if cell not in self.still and self.state.cells[cell].role == "to_training":
            super()._enter_training(cell)

    def _return(self, cell: int) -> None:
        if self.state.cells[cell].role == "to_rollout":
            self._role(cell, "rollout")

    # --- worlds and batches ---

    def _join_world(self, cell: int, epoch: int) -> None:
        if epoch != self.state.epoch or cell in self.still or cell not in self.state.living:
            return
        super()._join_world(cell, epoch)
        batch = self.state.batch
        for member in tuple(batch.joined) if batch is not None else ():
            self._claim(member)

    def _join_batch(self, cell: int) -> None:
        """Whoever may join does, in the world's order: `cell`, or those it has kept waiting."""
        for member in self.state.world:
            batch, known = self.state.batch, self.state.present(member)
            if batch is None or known is None or member in batch.dismissed:
                return
            if member not in batch.joined:
                if known.role != "training" or member in self.still or not self._connected(member):
                    return
                super()._join_batch(member)
                if member not in batch.joined:
                    return

    def _claim(self, cell: int) -> None:
        if cell not in self.still and self._connected(cell):
            super()._claim(cell)

    def _connected(self, cell: int) -> bool:
        known = self.state.present(cell)
        return known is not None and known.in_world == self.state.epoch

    def _step(self, name: str) -> None:
        """The reduction hangs while a member does; a member that left fails it."""
        batch = self.state.batch
        if batch is None or batch.batch != name or batch.members is None:
            return
        if any(cell in self.still or not self._connected(cell) for cell in batch.members):
            return
        super()._step(name)

    def _restored(self, body: sched.Restored) -> None:
        self._ready = [
            name
            for name, group in self.state.groups.items()
            if group.ready and group.claimed_version is None and not group.dropped
        ]
        self._busy.clear()
        if self.state.burst is not None:
            self.later(self.timings.publish, self._publish)
        for cell in self.state.in_order:
            if cell.role == "to_rollout" and self.state.burst is None:
                self.later(self.timings.switch, partial(self._return, cell.cell))

    # --- publications ---

    def _burst_ended(self, body: sched.BurstEnded) -> None:
        self.later(self.timings.publish, self._publish)

    def _publish(self) -> None:
        """The checkpoint, then every engine's confirmation, then the core's word."""
        state = self.state
        if state.burst is None or not state.burst.ended or state.core_lost:
            return
        if state.core.cell in self.still or not state.core.trainer_up:
            self.later(1.0, self._publish)
            return
        version, lineage = state.version, state.lineage
        if state.durable_version != version:
            self.fact(
                cell_events.CheckpointSaved(
                    version=version, lineage=lineage, path=f"/{lineage}.{version}", checksum=""
                )
            )
        self._send_back_satellites()
        for cell in state.everyone:
            if cell.serving and cell.served != (lineage, version) and cell.cell not in self.still:
                body = cell_events.WeightsLoaded(
                    cell=cell.cell, version=version, lineage=lineage, checksum=""
                )
                self.fact(body)
        if any(cell.serving and cell.served != (lineage, version) for cell in state.everyone):
            self.later(1.0, self._publish)
            return
        core = state.core.cell
        self.fact(
            cell_events.WeightsPublished(version=version, lineage=lineage, path="", confirmed_by=())
        )
        self.later(self.timings.switch, partial(self._return, core))

    def _send_back_satellites(self) -> None:
        for cell in self.state.in_order[1:]:
            if cell.role == "to_rollout":
                self.later(self.timings.switch, partial(self._return, cell.cell))

    _REACTIONS: ClassVar[dict[type[Body], Callable[[Any, Any], None]]] = {
        **World._REACTIONS,
        sched.TransitionStarted: _transition,
        sched.BurstEnded: _burst_ended,
        sched.CellLost: _leave,
        sched.CellReleased: _leave,
        sched.CellJoined: _joined,
        sched.Restored: _restored,
    }
