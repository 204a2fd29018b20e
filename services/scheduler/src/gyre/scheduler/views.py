"""A job's state as the API shows it."""

from __future__ import annotations

from gyre.contracts.http import CellView, JobView
from gyre.core.explain.waiting import waiting_for
from gyre.core.scheduling import ledger
from gyre.core.scheduling.state import JobState
from gyre.core.staleness import mean_staleness


def job_view(job: JobState) -> JobView:
    """Of a job whose submission is lost: without its name and its steps."""
    spec = job.spec
    return JobView(
        id=job.job,
        name=spec.name if spec is not None else "",
        status="queued" if job.status == "unknown" else job.status,
        reason=job.reason or job.lost_fact,
        phase=job.phase,
        paused=job.paused,
        pause_reason=job.pause_reason,
        draining=job.drain_requested is not None,
        num_steps_done=job.num_steps_done,
        num_steps=spec.schedule.num_steps if spec is not None else 0,
        version=job.version,
        published_version=job.published,
        lineage=job.lineage,
        num_dispatched=job.training.dispatched,
        num_started=job.training.started,
        num_terminated=job.training.terminated,
        num_heldout_dispatched=job.heldout.dispatched,
        num_heldout_terminated=job.heldout.terminated,
        waterlevel=job.training.waterlevel,
        capacity=ledger.rollout_capacity(job) if job.cells else 0,
        num_ready_groups=job.num_ready_unclaimed,
        mean_staleness=job.settled_staleness
        if job.settled
        else mean_staleness(job.groups.values()),
        waiting_for=starved.text() if (starved := waiting_for(job)) else None,
        cells=[
            CellView(cell=cell.cell, role=cell.role, num_executions=len(cell.executions))
            for cell in job.everyone
        ],
        num_lost_facts=job.num_lost_facts,
        sequence=job.sequence,
    )
