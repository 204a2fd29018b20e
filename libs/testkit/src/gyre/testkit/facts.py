"""Facts for tests that play a job by hand: what a test says nothing of is filled in.

Decisions are taken at time 0 on an empty log (`AT_0`), weights are of lineage 1, and the step that
makes version v + 1 trains batch `l1-s<v>`, as the scheduler names it.
"""

from __future__ import annotations

from typing import Any

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events

# The fields that every decision has.
AT_0: dict[str, Any] = {"based_on": 0, "now": 0.0}


def terminated(
    execution: str,
    reason: run_events.TerminationReason = "completed",
    *,
    attempt: int = 1,
    duration_s: float = 1.0,
) -> run_events.Terminated:
    return run_events.Terminated(
        execution=execution,
        attempt=attempt,
        reason=reason,
        exit_code=0 if reason == "completed" else None,
        signal=None,
        workspace=None,
        duration_s=duration_s,
    )


def role_changed(
    cell: int, role: cell_events.CellRole, version: int = 0, lineage: int = 1
) -> cell_events.RoleChanged:
    return cell_events.RoleChanged(
        cell=cell, role=role, version=version, lineage=lineage, engine_url=None, duration_s=0.0
    )


def to_training(cell: int) -> sched.TransitionStarted:
    return sched.TransitionStarted(**AT_0, cell=cell, to="training", waterlevel=0, capacity_after=0)


def batch_name(version: int) -> str:
    """Of the batch that is trained on weights of `version`, in lineage 1."""
    return f"l1-s{version:04d}"


def batch_opened(version: int) -> sched.BatchOpened:
    """The batch whose step makes `version` + 1, of one group."""
    name = batch_name(version)
    return sched.BatchOpened(
        **AT_0, batch=name, step=version, version=version, lineage=1, num_groups=1
    )


def step_completed(version: int) -> step_events.StepCompleted:
    """The core, cell 0, made `version` alone, in world 1 and of no micro-step."""
    return step_events.StepCompleted(
        batch=batch_name(version - 1),
        step=version - 1,
        version=version,
        lineage=1,
        epoch=1,
        members=(0,),
        micro_steps=(),
        statistics=step_events.NO_STATISTICS,
    )


def burst_ended(*, core_stays: bool, now: float = 0.0) -> sched.BurstEnded:
    """The first burst; the numbers that it was decided by are all 0."""
    return sched.BurstEnded(
        based_on=0,
        now=now,
        burst=0,
        core_stays=core_stays,
        waterlevel=0,
        next_dispatch=0,
        capacity_without_core=0,
        ready=0,
    )


def saved(version: int) -> cell_events.CheckpointSaved:
    """Durable at /c<version>."""
    return cell_events.CheckpointSaved(
        version=version, lineage=1, path=f"/c{version}", checksum="c"
    )


def published(version: int, lineage: int = 1) -> cell_events.WeightsPublished:
    return cell_events.WeightsPublished(
        version=version, lineage=lineage, path=f"/c{version}", confirmed_by=()
    )
