"""What the scheduler does next, from the state alone. One decision at a time.

`next_decision(state, now)` returns the event to append, or None when there is nothing to decide;
the shell appends it, folds it and asks again. The rules and their order are in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.registry import EVENT_TYPES
from gyre.core.scheduling.evolve import changes_state
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.rules import ORDER, Rule, bursts, executions, groups, life, members, roles
from gyre.core.scheduling.state import JobState

# The only rules that a fact can make due, in the order of ORDER; all of them for a kind that is not
# here. What is not folded makes none due; of the commonest facts, p is read by no rule, and f by
# those that look at free slots or at the waterlevel.
AFTER: Mapping[type[Body], tuple[Rule, ...]] = {
    **{kind: () for kind in EVENT_TYPES.values() if not changes_state(kind)},
    run_events.Started: (),
    run_events.Terminated: (
        life.cancel,
        life.drain,
        life.change_phase,
        groups.cancel_surplus,
        executions.dispatch,
        executions.start,
        bursts.start_burst,
        roles.supply_timer,
        roles.transition,
    ),
    # A decision, not somebody's fact: the rules before `start` had nothing to say when it was made,
    # and filled slots make none of them due.
    sched.StartOrdered: ORDER[ORDER.index(executions.start) :],
}


def next_decision(state: JobState, now: float, *, after: Body | None = None) -> Body | None:
    """The next event of this job's scheduler, None when nothing follows at `now` (unix seconds).

    after: the fact just folded, from a caller who knows that nothing was due before it at this
    `now`, or the `start_ordered` that this function has just given. The answer is the same; rules
    that cannot be due are not asked. Without that knowledge (after another decision, a timer,
    several facts) leave it out.
    """
    if state.lost_fact and not state.finished:
        return life.end_without(state, now)
    if state.status != "running":
        return None
    for rule in ORDER if after is None else AFTER.get(type(after), ORDER):
        decision = rule(state, now)
        if decision is not None:
            return decision
    return None


def next_wake(state: JobState) -> float | None:
    """When a decision may fall due without a new fact: the end of the supply timer, or of the time
    that a cell has."""
    if state.status != "running" or state.lost_fact:
        return None
    deadline = members.next_deadline(state)
    if state.supply_since is None:
        return deadline
    policy = policy_of(state)
    cell = policy.next_cell(state)
    if cell is None:
        return deadline
    timer = state.supply_since + policy.timer_s(state, cell)
    return timer if deadline is None else min(timer, deadline)
