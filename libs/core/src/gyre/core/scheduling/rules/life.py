"""A job's endings and its phases."""

from __future__ import annotations

from typing import Literal

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger
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


def cancel(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is None:
        return None
    if not state.cancelled_sent:
        return sched.ExecutionsCancelled(
            based_on=state.sequence,
            now=now,
            queued=tuple(queued.execution for queued in state.queue),
            running=tuple(name for cell in state.everyone for name in cell.executions),
            reason=state.cancel_requested,
        )
    if ledger.running(state) == 0:
        return _finish(state, now, "cancelled", state.cancel_requested)
    return None


def change_phase(state: JobState, now: float) -> Body | None:
    start = _next_phase(state)
    if start == "done":
        return _finish(state, now, "succeeded", "all steps done")
    if start is None:
        return None
    return sched.PhaseStarted(based_on=state.sequence, now=now, phase=start)


def _next_phase(state: JobState) -> NextPhase | None:
    heldout = bool(state.heldout_tasks)
    all_serving = all(cell.serving for cell in state.everyone if cell.role != "lost")
    match state.phase:
        case "booting":
            if all_serving and state.epoch > 0:
                return "heldout_before" if heldout else "training"
        case "heldout_before":
            if _heldout_done(state, 1):
                return "training"
        case "training":
            done = state.num_steps_done >= state.required_spec.schedule.num_steps
            if done and state.published == state.version and state.burst is None and all_serving:
                return "heldout_after" if heldout else "done"
        case "heldout_after":
            # Scoring overlaps training, but the job is over only when every score is in.
            if _heldout_done(state, 2) and state.num_heldout_scored == state.heldout.dispatched:
                return "done"
    return None


def _heldout_done(state: JobState, rounds: int) -> bool:
    total = rounds * len(state.heldout_tasks)
    return state.heldout.dispatched == total and state.heldout.terminated == total


def _finish(state: JobState, now: float, status: Ending, reason: str) -> Body:
    return sched.JobFinished(based_on=state.sequence, now=now, status=status, reason=reason)
