"""All jobs and all cells: which job runs on which cells. Jobs start first come, first served.

- A cell belongs to one job at a time, from `job_started` or `cell_joined` until it has said, after
  `job_finished`, `cell_lost` or `cell_released`, that it is offline: what it ran for that job has
  ended then. An agent that never says so keeps its cell out of use.
- A running job that has lost an elastic cell takes a free one before a waiting job starts: it was
  promised so many, and what it waits for delays all its executions.
- A cell that was asked back is not taken again by that job, nor one it has lost `MAX_LOSSES` times.
- A cell is given only to a job that it can run (`gyre.core.agent_fit`). Those that were online when
  the job was submitted could; an agent may have come since, or come back different.
- A job that asks for more cells than are free for it waits, and the jobs behind it wait too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events.lost import FactLost
from gyre.contracts.subjects import CLUSTER
from gyre.core.agent_fit import agent_misfit
from gyre.core.scheduling import ledger, transitions
from gyre.core.scheduling.evolve import evolve
from gyre.core.scheduling.state import JobState
from gyre.core.staleness import mean_staleness

# A cell that a job has lost this often is broken in a way that its agent's return does not mend.
MAX_LOSSES = 3


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """online: registered cells. agents: what each said of itself. jobs: in the order of submission.
    sequence: last fact folded."""

    online: dict[int, str] = field(default_factory=dict)
    agents: dict[int, cell_events.AgentOnline] = field(default_factory=dict)
    jobs: dict[str, JobState] = field(default_factory=dict)
    sequence: int = 0


def evolve_cluster(state: ClusterState, sequence: int, job: str, body: Body) -> ClusterState:
    """Fold one fact of `job` (or of the cluster). Mutates and returns `state`.

    A job whose first facts are lost is known from then on: somebody must end it.
    """
    state.sequence = sequence
    if job == CLUSTER:
        if isinstance(body, cell_events.AgentOnline):
            state.online[body.cell] = body.incarnation
            state.agents[body.cell] = body
        return state
    is_ended = isinstance(body, FactLost) and body.execution is None
    if is_ended or isinstance(body, sched.JobSubmitted):
        state.jobs.setdefault(job, JobState(job=job))
    known = state.jobs.get(job)
    if known is None:
        return state
    if not known.settled or isinstance(body, cell_events.RoleChanged):
        evolve(known, sequence, body)
    known.sequence = sequence
    if known.finished and not known.settled and _nothing_runs(known):
        _settle(known)
    return state


def _nothing_runs(job: JobState) -> bool:
    """Or what runs is not known any more: it ends by itself, with its job."""
    return job.lost_fact != "" or ledger.running(job) == 0


def _settle(job: JobState) -> None:
    """Nothing of the job runs any more: it keeps what its view shows, and its cells until they are
    offline. Its groups and executions are in the log; here they would pile up from job to job."""
    job.settled = True
    job.settled_staleness = mean_staleness(job.groups.values())
    job.executions, job.groups = {}, {}
    job.queue, job.heldout_queue = deque(), deque()
    job.unclaimed, job.surplus_due, job.lengths = {}, {}, {}
    job.train_tasks = job.heldout_tasks = ()


def next_cell_join(
    state: ClusterState, now: float, silent: frozenset[int] = frozenset()
) -> tuple[str, sched.CellJoined] | None:
    """The running job that is short of elastic cells, and the free cell that joins it, last in its
    order. silent: cells whose agents have not been heard of."""
    for job in state.jobs.values():
        if not _short_of_cells(job):
            continue
        for cell in _free_for(job, state, silent):
            before = job.cells.get(cell)
            lost_often = before is not None and before.num_lost >= MAX_LOSSES
            if cell not in job.released and not lost_often:
                joined = sched.CellJoined(
                    based_on=state.sequence, now=now, cell=cell, index=len(job.order)
                )
                return job.job, joined
    return None


def _short_of_cells(job: JobState) -> bool:
    if job.status != "running" or job.lost_fact or not job.order:
        return False
    if job.cancel_requested is not None:
        return False
    if len(job.order) >= job.required_spec.cells.count:
        return False
    return not transitions.steps_done(job)


def _free_for(job: JobState, state: ClusterState, silent: frozenset[int]) -> list[int]:
    """Online cells that no job holds and that can run this one, lowest first."""
    taken = silent | {
        cell.cell
        for one in state.jobs.values()
        for cell in one.cells.values()
        if cell.role != "offline"
    }
    return sorted(
        cell
        for cell, agent in state.agents.items()
        if cell not in taken and agent_misfit(job.required_spec, agent, experts=job.experts) is None
    )


def next_job_start(
    state: ClusterState, now: float, silent: frozenset[int] = frozenset()
) -> tuple[str, sched.JobStarted] | None:
    """The job that may start now, with its cells: the lowest that are free for it, the first is the
    core, the last are the pool. silent: cells whose agents have not been heard of."""
    waiting = next((job for job in state.jobs.values() if _is_queued(job)), None)
    if waiting is None:
        return None
    free = _free_for(waiting, state, silent)
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
        if _is_queued(job) and job.cancel_requested is not None:
            return job.job, sched.JobFinished(
                based_on=state.sequence, now=now, status="cancelled", reason=job.cancel_requested
            )
    return None


def _is_queued(job: JobState) -> bool:
    return job.status == "queued" and not job.lost_fact
