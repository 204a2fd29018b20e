"""All jobs and all cells: which job runs on which cells. Jobs start first come, first served.

- A cell belongs to one job at a time, from `job_started` until it has said, after `job_finished`,
  that it is offline: what it ran for that job has ended then.
- A job that asks for more cells than are free waits, and the jobs behind it wait too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.subjects import CLUSTER
from gyre.core.scheduling.evolve import evolve
from gyre.core.scheduling.state import JobState


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """online: registered cells. jobs: in the order of submission. sequence: last fact folded."""

    online: dict[int, str] = field(default_factory=dict)
    jobs: dict[str, JobState] = field(default_factory=dict)
    sequence: int = 0


def evolve_cluster(state: ClusterState, sequence: int, job: str, body: Body) -> ClusterState:
    """Fold one fact of `job` (or of the cluster). Mutates and returns `state`."""
    state.sequence = sequence
    if job == CLUSTER:
        if isinstance(body, cell_events.AgentOnline):
            state.online[body.cell] = body.incarnation
        return state
    if isinstance(body, sched.JobSubmitted):
        state.jobs.setdefault(job, JobState(job=job))
    known = state.jobs.get(job)
    if known is not None:
        evolve(known, sequence, body)
    return state


def next_job_start(state: ClusterState, now: float) -> tuple[str, sched.JobStarted] | None:
    """The job that may start now, with its cells: the lowest free ones, the first is the core, the
    last are the pool."""
    waiting = next((job for job in state.jobs.values() if job.status == "queued"), None)
    if waiting is None:
        return None
    held = {
        cell.cell
        for job in state.jobs.values()
        for cell in job.everyone
        if not job.finished or cell.role != "offline"
    }
    free = sorted(cell for cell in state.online if cell not in held)
    cells = waiting.required_spec.cells
    if len(free) < cells.num_cells:
        return None
    started = sched.JobStarted(
        based_on=state.sequence,
        now=now,
        cells=tuple(free[: cells.count]),
        pool=tuple(free[cells.count : cells.num_cells]),
        lineage=1,
    )
    return waiting.job, started


def cancel_of_queued(state: ClusterState, now: float) -> tuple[str, sched.JobFinished] | None:
    """A job cancelled before it had cells ends at once."""
    for job in state.jobs.values():
        if job.status == "queued" and job.cancel_requested is not None:
            return job.job, sched.JobFinished(
                based_on=state.sequence, now=now, status="cancelled", reason=job.cancel_requested
            )
    return None
