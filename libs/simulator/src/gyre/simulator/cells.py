"""Cell agents: cells boot, change roles, and the core publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched

if TYPE_CHECKING:
    from gyre.simulator.engine import Simulation


class CellPlayers:
    """entered_training: told of each cell that is in the training role now."""

    entered_training: Callable[[int], None]

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._training_since: dict[int, float] = {}
        self.reactions: dict[type[Body], Callable[[Any], None]] = {
            sched.WorldFormed: self._world_formed,
            sched.TransitionStarted: self._transition,
            sched.BurstEnded: self._burst_ended,
        }

    def boot(self) -> None:
        """All cells at once and at no cost: a simulated job begins with its first dispatch."""
        world = self._world
        for cell in world.state.cells.values():
            if not cell.pool:
                world.fact(cell_events.TrainerReady(cell=cell.cell, pid=1))
            self._role(cell.cell, "rollout")

    def settle(self) -> None:
        """Count the cells that still train when the simulation stops."""
        for cell in tuple(self._training_since):
            self._left_training(cell)

    def _world_formed(self, body: sched.WorldFormed) -> None:
        for cell in body.cells:
            self._world.fact(cell_events.WorldJoined(cell=cell, epoch=body.epoch))

    def _transition(self, body: sched.TransitionStarted) -> None:
        self._note(body.cell, "switching")
        if body.to == "rollout":
            self._go_back(body.cell, self._world.speeds.to_rollout_s)
            return
        self._training_since[body.cell] = self._world.now
        self._world.later(self._world.speeds.to_training_s, self._enter_training, body.cell)

    def _enter_training(self, cell: int) -> None:
        if self._world.state.cells[cell].role == "to_training":
            self._role(cell, "training")
            self.entered_training(cell)

    def _burst_ended(self, body: sched.BurstEnded) -> None:
        """Satellites go back at once, the core when it has published."""
        world, speeds = self._world, self._world.speeds
        world.later(speeds.publish_s, self._publish, None)
        for cell in world.state.in_order:
            if cell.role == "to_rollout" and cell.cell in self._training_since:
                self._note(cell.cell, "switching")
                wait = speeds.publish_s if cell.index == 0 else 0.0
                self._go_back(cell.cell, wait + speeds.to_rollout_s)

    def _go_back(self, cell: int, delay: float) -> None:
        if cell in self._training_since:
            self._left_training(cell)
        self._world.later(delay, self._enter_rollout, cell)

    def _enter_rollout(self, cell: int) -> None:
        self._role(cell, "rollout")

    def _publish(self, nothing: None) -> None:
        world = self._world
        state = world.state
        version, lineage = state.version, state.lineage
        world.outcome.published_s.append(world.now)
        world.fact(
            cell_events.CheckpointSaved(version=version, lineage=lineage, path="", checksum="")
        )
        world.fact(
            cell_events.WeightsPublished(version=version, lineage=lineage, path="", confirmed_by=())
        )

    def _left_training(self, cell: int) -> None:
        world = self._world
        span = world.now - self._training_since.pop(cell)
        world.outcome.training_node_s += span * world.nodes[cell]

    def _role(self, cell: int, role: cell_events.CellRole) -> None:
        world = self._world
        self._note(cell, role)
        world.fact(
            cell_events.RoleChanged(
                cell=cell,
                role=role,
                version=world.state.published,
                lineage=world.state.lineage,
                engine_url=None,
                duration_s=0.0,
            )
        )

    def _note(self, cell: int, role: str) -> None:
        if self._world.record:
            self._world.outcome.roles.append((self._world.now, cell, role))
