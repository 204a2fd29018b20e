"""After which facts the decider need not be asked: what they change enables no rule.

A table of kinds. A kind that is not in it is always asked about, so that a new rule or a new kind
of event is slow here and never wrong. tests/properties/test_simulator_law.py holds that a run with
this table and one that asks after every fact have the same log.
"""

from __future__ import annotations

from collections.abc import Callable

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scores as score_events
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling import JobState
from gyre.core.scheduling.policies import policy_of


def next_level(state: JobState) -> int | None:
    """The waterlevel that the next cell waits for, None when no supply timer runs: the right side
    of eq. (2) or what the policy has in its place. It stands until another fact is asked about."""
    if state.supply_since is None:
        return None
    policy = policy_of(state)
    cell = policy.next_cell(state)
    return None if cell is None else policy.capacity_after(state, cell)


def _outside_training(state: JobState, level: int | None) -> bool:
    """Held-out executions end phases."""
    return state.phase != "training"


def _ended(state: JobState, level: int | None) -> bool:
    """A freed slot matters to a queue, a lower waterlevel to the cell that waits for it, the count
    of a group's ended ones under oversampling, an end of any kind when the job is ending."""
    return (
        bool(state.queue)
        or bool(state.heldout_queue)
        or (level is not None and state.training.waterlevel <= level)
        or state.phase != "training"
        or state.cancel_requested is not None
        or state.num_steps_done >= state.required_spec.schedule.num_steps
        or state.required_spec.schedule.executions_started is not None
    )


def _all_claimed(state: JobState, level: int | None) -> bool:
    """The join window waits for the last claim."""
    return state.batch is None or state.batch.all_claimed


# None: never.
TABLE: dict[type[Body], Callable[[JobState, int | None], bool] | None] = {
    run_events.Started: None,
    run_events.AttemptStarted: None,
    run_events.Terminated: _ended,
    score_events.Evaluated: _outside_training,
    group_events.MicroStepEmitted: None,
    step_events.MicroStepClaimed: _all_claimed,
}


def always(state: JobState, level: int | None) -> bool:
    """For kinds that are not in the table."""
    return True
