"""What must fit into one event, looked at before a job is accepted: later it would stop the log."""

from __future__ import annotations

from collections.abc import Sequence

from gyre.adapters.eventlog.base import MAX_EVENT_BYTES
from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.cadence import groups_due
from gyre.core.scheduling.plans import heldout_groups, training_groups
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import JobState
from gyre.scheduler.submission import InvalidJob

# The head around a body: ids, subject, times.
_HEAD_BYTES = 1024


def check_sizes(job: str, submitted: sched.JobSubmitted) -> None:
    """Raises InvalidJob when the submission or one of its dispatches is no event."""
    num_tasks = len(submitted.train_tasks) + len(submitted.heldout_tasks)
    _require_fits(submitted, "tasks", f"the names of {num_tasks} tasks", "split the set")
    state = JobState(
        job=job,
        spec=submitted.spec,
        train_tasks=submitted.train_tasks,
        heldout_tasks=submitted.heldout_tasks,
    )
    groups = training_groups(state, groups_due(state, policy_of(state).cadence))
    num_executions = sum(len(group.executions) for group in groups)
    _require_fits(
        _dispatched(groups),
        "schedule",
        f"a dispatch of {num_executions} executions",
        "lower mu, phi, groups_per_step or executions_per_group",
    )
    _require_fits(
        _dispatched(heldout_groups(state)),
        "tasks.heldout",
        f"a dispatch of {len(submitted.heldout_tasks)} tasks",
        "make the held-out set smaller",
    )


def _dispatched(groups: Sequence[sched.GroupPlan]) -> sched.Dispatched:
    return sched.Dispatched(
        based_on=0, now=0.0, kind="training", groups=tuple(groups), version=0, lineage=1
    )


def _require_fits(body: Body, field: str, what: str, mend: str) -> None:
    size = len(body.model_dump_json()) + _HEAD_BYTES
    if size > MAX_EVENT_BYTES:
        raise InvalidJob(
            field, f"{what} takes {size} bytes, one event holds {MAX_EVENT_BYTES}; {mend}"
        )
