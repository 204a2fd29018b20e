"""What the REST API answers. Errors are `{"error": {"field": ..., "message": ...}}`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class CellView(_View):
    cell: int
    role: str
    num_executions: int


class JobView(_View):
    """Counts are executions unless the name says groups or steps. sequence: last fact folded.
    paused: nothing new begins. pause_reason: why, "" while it is not. draining: the job ends after
    the burst it is in.
    waiting_for: what a starving burst waits for, in words; None when none starves.
    num_lost_facts: facts of the job that lie in the log and cannot be read."""

    id: str
    name: str
    status: str
    reason: str
    phase: str
    paused: bool
    pause_reason: str = ""
    draining: bool
    num_steps_done: int
    num_steps: int
    version: int
    published_version: int
    lineage: int
    num_dispatched: int
    num_started: int
    num_terminated: int
    num_heldout_dispatched: int
    num_heldout_terminated: int
    waterlevel: int
    capacity: int
    num_ready_groups: int
    mean_staleness: float | None
    waiting_for: str | None = None
    cells: list[CellView]
    num_lost_facts: int = 0
    sequence: int


class JobList(_View):
    jobs: list[JobView]


class ClusterCellView(_View):
    """A cell whose agent has registered. job: None when it is free. leaving: its job has ended, or
    goes on without it. heard: its agent's heartbeats arrive."""

    cell: int
    job: str | None
    role: str
    leaving: bool
    num_executions: int
    heard: bool


class ClusterCellList(_View):
    cells: list[ClusterCellView]
