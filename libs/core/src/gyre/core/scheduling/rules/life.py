"""A job's endings and its phases."""

from __future__ import annotations

from typing import Literal

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger, transitions
from gyre.core.scheduling.rules.roles import back_to_rollout
from gyre.core.scheduling.state import JobState

NextPhase = Literal["heldout_before", "training", "heldout_after", "done"]
Ending = Literal["succeeded", "cancelled", "failed"]

# A cell whose engine fails to come up this often in a row will not come up: the job says so, ends.
MAX_BOOT_FAILURES = 3
# A core lost this often since its last durable checkpoint dies of the work itself, not by accident.
MAX_RESTORES = 5
# Likewise a trainer that dies this often without one step between: restarting it changes nothing.
MAX_TRAINER_LOSSES = 8


def fail(state: JobState, now: float) -> Body | None:
    skipped, most = state.num_skipped_in_a_row, state.required_spec.objective.max_skipped_steps
    if most is not None and skipped >= most:
        why = f"{skipped} steps in a row were not applied: {state.last_skip or 'not finite'}"
        return _finish(state, now, "failed", why)
    if state.num_losses == 0 and not state.core_lost:
        return None
    for cell in state.everyone:
        if cell.num_boot_failures >= MAX_BOOT_FAILURES:
            what = "engine does not start"
        elif cell.num_trainer_losses >= MAX_TRAINER_LOSSES:
            what = f"trainer lost {cell.num_trainer_losses} times without a step between"
        else:
            continue
        return _finish(state, now, "failed", f"cell {cell.cell}: {what}: {cell.last_error}")
    if state.core_lost and state.num_restores >= MAX_RESTORES:
        return _finish(
            state,
            now,
            "failed",
            f"the core was lost {state.num_restores + 1} times since its last checkpoint: "
            f"{state.core.last_error}",
        )
    return None


def end_without(state: JobState, now: float) -> Body:
    """Of a job one of whose own facts is lost: nothing more can be decided, in whatever phase."""
    return _finish(state, now, "failed", f"a fact of the job is lost: {state.lost_fact}")


def cancel(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is None:
        return None
    if not state.cancelled_sent:
        return _cancel_everything(state, now, state.cancel_requested)
    if ledger.running(state) == 0:
        return _finish(state, now, "cancelled", state.cancel_requested)
    return None


def drain(state: JobState, now: float) -> Body | None:
    """The burst that a drain waited for is published: what is queued or running is cancelled, cells
    that stayed in training go back. When all have ended the phase changes."""
    if state.phase != "training" or not transitions.drained(state):
        return None
    outstanding = state.training.waterlevel + state.heldout.waterlevel
    if not state.drained_sent and outstanding > 0:
        return _cancel_everything(state, now, state.drain_requested or "")
    cell = next((cell for cell in state.in_order if cell.role == "training"), None)
    return None if cell is None else back_to_rollout(state, cell, now)


def _cancel_everything(state: JobState, now: float, reason: str) -> Body:
    return sched.ExecutionsCancelled(
        based_on=state.sequence,
        now=now,
        queued=tuple(queued.execution for queued in (*state.queue, *state.heldout_queue)),
        running=tuple(name for cell in state.everyone for name in cell.executions),
        reason=reason,
    )


def change_phase(state: JobState, now: float) -> Body | None:
    start = _next_phase(state)
    if start == "done":
        done = transitions.steps_done(state)
        reason = "all steps done" if done else f"drained after step {state.num_steps_done}"
        return _finish(state, now, "succeeded", reason)
    if start is None:
        return None
    return sched.PhaseStarted(based_on=state.sequence, now=now, phase=start)


def _next_phase(state: JobState) -> NextPhase | None:
    """A job drained before its first dispatch ends without a second measurement: the weights are
    those of the first one, which goes on to its end."""
    heldout, draining = bool(state.heldout_tasks), state.drain_requested is not None
    match state.phase:
        case "booting":
            if draining:
                return "done"
            if state.epoch > 0 and _all_serving(state):
                return "heldout_before" if heldout else "training"
        case "heldout_before":
            if draining:
                return "done" if _heldout_scored(state) else None
            if _heldout_done(state):
                return "training"
        case "training":
            if _training_over(state) and _heldout_done(state) and _all_serving(state):
                return "heldout_after" if heldout else "done"
        case "heldout_after":
            if _heldout_scored(state):
                return "done"
    return None


def _training_over(state: JobState) -> bool:
    """Nothing of it runs any more either: surplus and cancelled executions hold their slots until
    they have terminated."""
    published = state.published == state.version and state.burst is None
    over = transitions.steps_done(state) or transitions.drained(state)
    return over and published and state.training.waterlevel == 0


def _all_serving(state: JobState) -> bool:
    return all(cell.serving for cell in state.everyone if cell.role != "lost")


def _heldout_done(state: JobState) -> bool:
    """Every measurement that was begun has ended, and the phase's own was begun."""
    measuring = state.phase != "training" and state.dispatch_due
    return not measuring and state.heldout.terminated == state.heldout.dispatched


def _heldout_scored(state: JobState) -> bool:
    """Scoring overlaps training, but the job is over only when every score is in."""
    return _heldout_done(state) and state.num_heldout_scored == state.heldout.dispatched


def _finish(state: JobState, now: float, status: Ending, reason: str) -> Body:
    return sched.JobFinished(based_on=state.sequence, now=now, status=status, reason=reason)
