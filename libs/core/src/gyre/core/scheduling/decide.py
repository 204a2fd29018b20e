"""What the scheduler does next, from the state alone. One decision at a time.

`next_decision(state, now)` returns the event to append, or None when there is nothing to decide;
the shell appends it, folds it and asks again. The rules and their order are in `rules`.
"""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.rules import ORDER
from gyre.core.scheduling.state import JobState


def next_decision(state: JobState, now: float) -> Body | None:
    """The next event of this job's scheduler, None when nothing follows at `now` (unix seconds)."""
    if state.status != "running":
        return None
    for rule in ORDER:
        decision = rule(state, now)
        if decision is not None:
            return decision
    return None


def next_wake(state: JobState) -> float | None:
    """When a decision may fall due without a new fact: the end of the supply timer."""
    if state.status != "running" or state.supply_since is None:
        return None
    policy = policy_of(state)
    cell = policy.next_cell(state)
    return None if cell is None else state.supply_since + policy.timer_s(state, cell)
