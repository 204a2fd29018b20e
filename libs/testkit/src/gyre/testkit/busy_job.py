"""A job's state with as many executions as wanted, made by folding events as the scheduler does."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.core.scheduling.plans import training_groups
from gyre.testkit.facts import role_changed
from gyre.testkit.specs import job_spec


@dataclass(slots=True, kw_only=True)
class BusyJob:
    """state: all cells in rollout, every slot taken, what is left over queued."""

    state: JobState = field(default_factory=lambda: JobState(job="job"))

    def fold(self, body: Body) -> None:
        evolve(self.state, self.state.sequence + 1, body)

    def decide(self) -> Body | None:
        return next_decision(self.state, 0.0)


def busy_job(*, num_cells: int, capacity: int, num_groups: int, group_size: int) -> BusyJob:
    """`num_groups` groups of `group_size` dispatched; as many run as `num_cells * capacity`."""
    busy = BusyJob()
    spec = job_spec(
        cells=num_cells,
        capacity=capacity,
        heldout=False,
        groups_per_step=num_groups,
        executions_per_group=group_size,
        phi=0,
        mu=1,
        num_steps=4,
    )
    cells = tuple(range(num_cells))
    busy.fold(sched.JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()))
    busy.fold(sched.JobStarted(based_on=0, now=0.0, cells=cells, lineage=1))
    for cell in cells:
        busy.fold(cell_events.TrainerReady(cell=cell, pid=1))
        busy.fold(role_changed(cell, "rollout"))
    busy.fold(sched.WorldFormed(based_on=0, now=0.0, epoch=1, cells=cells))
    for cell in cells:
        busy.fold(cell_events.WorldJoined(cell=cell, epoch=1))
    busy.fold(sched.PhaseStarted(based_on=0, now=0.0, phase="training"))
    groups = training_groups(busy.state, num_groups)
    busy.fold(
        sched.Dispatched(based_on=0, now=0.0, kind="training", groups=groups, version=0, lineage=1)
    )
    while (decision := busy.decide()) is not None:
        busy.fold(decision)
    return busy


def started(busy: BusyJob, execution: str) -> Body:
    group = busy.state.executions[execution].group
    return run_events.Started(execution=execution, group=group, task="t")
