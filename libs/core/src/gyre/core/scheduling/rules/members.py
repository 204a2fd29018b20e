"""Which cells a job has: those that miss a deadline, fall silent or are wanted back leave it.

- A cell that leaves takes nothing with it: the same event moves its executions, its claims are
  fenced, and the next cell in order is the core if it was.
- Nobody is lost for another's delay (`deadlines`).
- While one cell lives the job goes on. Where all that live are in training and executions wait for
  a cell that serves, one goes back before its burst ends.
"""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger
from gyre.core.scheduling.deadlines import deadlines, nothing_due
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.rules.life import MAX_BOOT_FAILURES
from gyre.core.scheduling.rules.roles import back_to_rollout
from gyre.core.scheduling.state import Cell, JobState


def next_deadline(state: JobState) -> float | None:
    """When the next cell is lost if nothing comes of it, unix seconds."""
    if not state.awaited and (state.burst is None or not state.burst.ended):
        return None
    return min((deadline.at for deadline in deadlines(state)), default=None)


def none_left(state: JobState, now: float) -> Body | None:
    """The last cell was lost, or the last that the policy lets serve."""
    if not state.last_loss:
        return None
    if state.order:
        missing = policy_of(state).nobody_serves(state)
    else:
        missing = "no cell is left to train on"
    if missing is None:
        return None
    reason = f"{missing}; {state.last_loss}"
    return sched.JobFinished(based_on=state.sequence, now=now, status="failed", reason=reason)


def watch(state: JobState, now: float) -> Body | None:
    """An engine died while it served: nothing but this event says since when it is missed."""
    for number in sorted(state.awaited):
        cell = state.cells[number]
        if cell.since is None and cell.role == "booting":
            return sched.CellWatched(based_on=state.sequence, now=now, cell=number)
    return None


def lose(state: JobState, now: float) -> Body | None:
    if not state.awaited and (state.burst is None or not state.burst.ended):
        return None
    for number in sorted(state.awaited):
        cell = state.cells[number]
        if cell.silent:
            limit = state.required_spec.schedule.silence_deadline_s
            return _lost(state, now, cell, f"its agent was silent for {limit:g} s")
        if _never_boots(state, cell):
            return _lost(state, now, cell, f"its engine does not start: {cell.last_error}")
    if nothing_due(state, now):
        return None
    due = next((deadline for deadline in deadlines(state) if now >= deadline.at), None)
    return None if due is None else _lost(state, now, due.cell, due.missed)


def _never_boots(state: JobState, cell: Cell) -> bool:
    """At the job's beginning that is a fault of the job, which ends with it (`life.fail`)."""
    return (
        cell.num_boot_failures >= MAX_BOOT_FAILURES
        and state.phase != "booting"
        and (cell.pool or len(state.order) > 1)
    )


def _lost(state: JobState, now: float, cell: Cell, reason: str) -> Body:
    return sched.CellLost(
        based_on=state.sequence,
        now=now,
        cell=cell.cell,
        moves=ledger.moves_off(state, cell),
        reason=reason,
    )


def release(state: JobState, now: float) -> Body | None:
    """A cell that is wanted back leaves when it trains nothing and another serves; the core between
    two bursts, when all that it has trained is published."""
    for number in state.released:
        cell = state.present(number)
        if cell is None or cell.role not in ("rollout", "booting"):
            continue
        if not cell.pool and (len(state.order) == 1 or not _may_leave(state, cell)):
            continue
        if any(other.serving for other in state.everyone if other is not cell):
            return sched.CellReleased(
                based_on=state.sequence,
                now=now,
                cell=number,
                moves=ledger.moves_off(state, cell),
            )
    return None


def _may_leave(state: JobState, cell: Cell) -> bool:
    if cell.index > 0:
        return True
    idle = state.burst is None and state.batch is None and not state.core_lost
    return idle and state.version == state.durable_version


def serve_again(state: JobState, now: float) -> Body | None:
    """Executions wait, no cell serves and none is on its way: the last one in training goes back.

    Eq. (2) lets a cell train only while the others hold all executions, so this follows from a loss
    alone. The core gives up the open batch for it; a satellite only leaves it.
    """
    if state.serving_capacity > 0 or state.phase == "booting" or _publishing(state):
        return None
    if state.training.waterlevel + state.heldout.waterlevel == 0:
        return None
    if any(cell.role in ("booting", "to_rollout", "to_training") for cell in state.everyone):
        return None
    cell = next((cell for cell in reversed(state.in_order) if cell.role == "training"), None)
    return None if cell is None else back_to_rollout(state, cell, now)


def _publishing(state: JobState) -> bool:
    return state.burst is not None and state.burst.ended
