"""What fills capacity: groups enter the queue, executions start."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger
from gyre.core.scheduling.cadence import groups_due
from gyre.core.scheduling.plans import heldout_groups, training_groups
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import JobState


def dispatch(state: JobState, now: float) -> Body | None:
    if not state.dispatch_due or state.paused:
        return None
    if state.phase == "training":
        policy = policy_of(state)
        if state.drain_requested is not None or not policy.may_dispatch(state):
            return None
        due = groups_due(state, policy.cadence)
        groups = policy.start_order(state, training_groups(state, due))
    else:
        groups = heldout_groups(state)
    if not groups:
        return None
    return sched.Dispatched(
        based_on=state.sequence,
        now=now,
        kind="training" if state.phase == "training" else "heldout",
        groups=groups,
        version=state.published,
        lineage=state.lineage,
    )


def measure(state: JobState, now: float) -> Body | None:
    """The held-out set once more, on reserved slots, while the job trains."""
    if not state.measurement_due or state.phase != "training" or state.paused:
        return None
    if state.cancel_requested is not None or state.drain_requested is not None:
        return None
    return sched.Dispatched(
        based_on=state.sequence,
        now=now,
        kind="heldout",
        groups=heldout_groups(state),
        version=state.published,
        lineage=state.lineage,
    )


def start(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is not None or state.paused or _of_no_use(state):
        return None
    orders = ledger.start_orders(state)
    if not orders:
        return None
    return sched.StartOrdered(based_on=state.sequence, now=now, orders=orders)


def _of_no_use(state: JobState) -> bool:
    """The job is drained after a burst that takes no further group: what is queued is cancelled
    once its weights are published."""
    if state.drain_requested is None or state.phase != "training":
        return False
    return state.burst is None or state.burst.ended
