"""What fills capacity: groups enter the queue, executions start."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger, transitions
from gyre.core.scheduling.plans import heldout_groups, training_groups
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import JobState


def dispatch(state: JobState, now: float) -> Body | None:
    if not state.dispatch_due:
        return None
    if state.phase == "training" and not policy_of(state).may_dispatch(state):
        return None
    if state.phase == "training":
        first = state.num_groups_dispatched == 0
        num = transitions.next_dispatch(state, first=first)
        groups = training_groups(state, num)
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


def start(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is not None:
        return None
    orders = ledger.start_orders(state)
    if not orders:
        return None
    return sched.StartOrdered(based_on=state.sequence, now=now, orders=orders)
