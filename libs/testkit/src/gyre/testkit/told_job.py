"""A job that a test tells fact by fact, folded by the scheduler and by its cells."""

from __future__ import annotations

from typing import Any

from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.core.cell import CellState, Duty, Holdings, evolve_cell, next_duty
from gyre.core.scheduling import JobState, next_decision
from gyre.core.scheduling.cluster import ClusterState, evolve_cluster
from gyre.testkit.facts import (
    AT_0,
    batch_opened,
    burst_ended,
    role_changed,
    step_completed,
    to_training,
)
from gyre.testkit.specs import job_spec

JOB = "job"
NUM_CELLS = 4
DEADLINES = {"transition_deadline_s": 10.0, "boot_deadline_s": 100.0}


class ToldJob:
    """Started, on the first three of four cells. held: what each cell's processes hold, the model's
    own weights until a test says else. spec: of `job_spec`."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = ClusterState()
        self.cells = [CellState(cell=cell) for cell in range(NUM_CELLS)]
        self.held = [
            Holdings(engine_version=(1, 0), trainer_version=(1, 0)) for _ in range(NUM_CELLS)
        ]
        self._sequence = 0
        for cell in range(NUM_CELLS):
            online = cell_events.AgentOnline(cell=cell, incarnation="i", host="h", pid=1)
            self.tell(online, job=subjects.CLUSTER)
        submitted = sched.JobSubmitted(
            spec=job_spec(**DEADLINES | spec), train_tasks=("t",), heldout_tasks=()
        )
        self.tell(submitted, sched.JobStarted(**AT_0, cells=(0, 1, 2), lineage=1))

    @property
    def state(self) -> JobState:
        return self.cluster.jobs[JOB]

    def tell(self, *bodies: Body, job: str = JOB) -> ToldJob:
        for body in bodies:
            self._sequence += 1
            evolve_cluster(self.cluster, self._sequence, job, body)
            self.cells = [
                evolve_cell(cell, self._sequence, job, subjects.sched(job), body)
                for cell in self.cells
            ]
        return self

    def duty(self, cell: int) -> Duty | None:
        return next_duty(self.cells[cell], self.held[cell])

    def decision(self, now: float = 0.0) -> Body | None:
        return next_decision(self.state, now)

    def booted(self) -> ToldJob:
        """Trainers are up and engines in rollout."""
        for cell in range(3):
            self.tell(cell_events.TrainerReady(cell=cell, pid=1), role_changed(cell, "rollout"))
        return self.tell(sched.WorldFormed(**AT_0, epoch=1, cells=(0, 1, 2)))

    def in_rollout(self) -> ToldJob:
        """All in world 1, nothing dispatched that runs."""
        self.booted()
        for cell in range(3):
            self.tell(cell_events.WorldJoined(cell=cell, epoch=1))
            self.held[cell].world_epoch = 1
        return self.tell(
            sched.PhaseStarted(**AT_0, phase="training"),
            sched.Dispatched(**AT_0, kind="training", groups=(), version=0, lineage=1),
        )

    def in_training(self, *cells: int, num_steps: int) -> ToldJob:
        """These have changed role, and the first batch of a burst of num_steps is open."""
        self.in_rollout()
        for cell in cells:
            self.tell(to_training(cell), role_changed(cell, "training"))
        burst = sched.BurstStarted(**AT_0, burst=0, first_step=0, num_steps=num_steps)
        return self.tell(burst, batch_opened(0))

    def in_batch(self) -> ToldJob:
        """The core alone in training, its batch open."""
        joined = cell_events.BatchJoined(cell=0, batch="l1-s0000", version=0, lineage=1)
        return self.in_training(0, num_steps=2).tell(joined)

    def burst_over(self) -> ToldJob:
        """One step done, the burst ended, nothing saved yet."""
        return self.in_batch().tell(step_completed(1), burst_ended(core_stays=False))
