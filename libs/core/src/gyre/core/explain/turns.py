"""Whose turn it is to join training, and why it is nobody's or another's."""

from __future__ import annotations

from gyre.core.scheduling import transitions
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import Cell, JobState

_PHASES = {
    "booting": "the job's cells are still booting",
    "heldout_before": "the held-out set is measured before the first dispatch: all cells serve",
    "heldout_after": "all steps are done: the held-out set is measured again, all cells serve",
}


def why_no_turn(state: JobState, cell: Cell) -> str | None:
    """Why `cell` is not the one whose turn it is; None when it is."""
    turn = policy_of(state).next_cell(state) if state.status == "running" else None
    if turn is not None and turn.cell == cell.cell:
        return _held_back(state)
    if cell.gone:
        return f"it is {cell.role}: it has left the job"
    if cell.pool:
        return "it is of the pool, which only ever serves"
    if cell.role == "training":
        return "it trains already"
    if turn is not None:
        return (
            f"it is cell {turn.cell}'s turn: core first, then satellites in index order, "
            "one at a time"
        )
    return why_nobodys_turn(state)


def why_nobodys_turn(state: JobState) -> str:
    """Why no cell may join now. To be asked when the policy names none."""
    return (
        _outside_training(state)
        or _held_back(state)
        or _between(state)
        or _first_in_the_way(state)
        or f"policy {state.required_spec.schedule.policy} lets no further cell train"
    )


def _outside_training(state: JobState) -> str | None:
    if state.finished:
        return f"the job is over ({state.status}: {state.reason})"
    if state.status != "running":
        return "the job waits for cells"
    if state.cancel_requested is not None:
        return "the job is being cancelled"
    if state.phase != "training":
        return _PHASES[state.phase]
    if state.core_lost:
        return "the core was lost: its weights are being restored from the last checkpoint"
    if transitions.steps_done(state):
        return "all steps are done"
    return None


def _held_back(state: JobState) -> str | None:
    if not transitions.held_back(state):
        return None
    if state.save_failed and state.paused:
        return f"the job is paused: {state.pause_reason}"
    return "the job is paused" if state.paused else "the job is drained: no further burst begins"


def _between(state: JobState) -> str | None:
    moving, burst = state.transitioning, state.burst
    if moving is not None:
        return f"cell {moving.cell} is on its way into training, and one goes at a time"
    if burst is not None and burst.ended:
        return f"burst {burst.burst} is over and its weights are being published"
    if state.batch is not None and transitions.window_closed(state):
        return f"the join window of batch {state.batch.batch} is closed: its update is on its way"
    return None


def _first_in_the_way(state: JobState) -> str | None:
    """The first cell of the order that does not train: none passes it."""
    first = next((cell for cell in state.in_order if cell.role != "training"), None)
    if first is None:
        return "every elastic cell trains already"
    who = f"cell {first.cell}, the next in order,"
    if first.role != "rollout":
        return f"{who} is {_ROLES.get(first.role, first.role)}, and none passes it"
    if not first.trainer_up:
        return f"{who} has no trainer that is up, and none passes it"
    if not transitions.trainable(state, first):
        return f"{who} has no trainer in world {state.epoch} yet, and none passes it"
    return policy_of(state).left_out(state, first)


_ROLES = {
    "booting": "booting its engine",
    "to_training": "on its way into training",
    "to_rollout": "on its way back into rollout",
}
