"""By when a cell must be where it is expected, and what is said of it when it is not.

A role names the way a cell is on; `Cell.since` says from when. One leg takes at most
`transition_deadline_s`, or `boot_deadline_s` where a process of the cell must start in it:

| on its way | from | at most |
|---|---|---|
| booting, or its engine died | job_started, cell_joined, cell_watched | a boot |
| into training | transition_started | one leg |
| the core, at a burst's end, until its checkpoint is durable | burst_ended | one leg |
| out of training, and engines that serve and must load the checkpoint | burst_ended | two legs |
| the core, back in rollout behind the publication | burst_ended | three legs |

A satellite that goes back waits for the checkpoint, and the core for the engines: nobody's time
runs while it waits for another cell, and a `restored` core gives everyone on the way back new time.
Nor does it while the core could not save its checkpoint and the job waits to be resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.core.scheduling.state import Burst, Cell, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """at: unix seconds, `limit_s` after the cell was set on its way. what: is missing then."""

    cell: Cell
    at: float
    limit_s: float
    what: str

    @property
    def missed(self) -> str:
        """What to say when it has passed."""
        return f"{self.what} within {self.limit_s:g} s"


def deadlines(state: JobState) -> Iterator[Deadline]:
    """Everything that is awaited of the job's cells now."""
    for number in sorted(state.awaited):
        deadline = _of_role(state, state.cells[number])
        if deadline is not None:
            yield deadline
    burst = state.burst
    if burst is not None and burst.ended and not state.core_lost:
        yield from _of_publication(state, burst)


def nothing_due(state: JobState, now: float) -> bool:
    """A cheap look that spares `deadlines`: nothing is waited for, or nothing for a whole leg."""
    schedule = state.required_spec.schedule
    leg = min(schedule.transition_deadline_s, schedule.boot_deadline_s)
    for number in state.awaited:
        since = state.cells[number].since
        if since is not None and now >= since + leg:
            return False
    burst = state.burst
    if burst is None or not burst.ended:
        return True
    core = state.core.since
    return now < burst.since + leg and (core is None or now < core + leg)


def _of_role(state: JobState, cell: Cell) -> Deadline | None:
    if cell.since is None:
        return None
    if cell.role == "booting":
        limit = state.required_spec.schedule.boot_deadline_s
        return _deadline(cell, cell.since, limit, "its engine did not come into rollout")
    leg = _leg(state, cell)
    if cell.role == "to_training":
        return _deadline(cell, cell.since, leg, "it did not come into training")
    if cell.role != "to_rollout" or state.core_lost:
        return None
    burst = state.burst
    if burst is not None and burst.ended and (cell.index == 0 or not _durable(state)):
        return None
    legs = 3 if cell.index == 0 else 2
    return _deadline(cell, cell.since, legs * leg, "it did not come back into rollout")


def _of_publication(state: JobState, burst: Burst) -> Iterator[Deadline]:
    """Between a burst's end and its publication: the checkpoint, the engines, the core's word."""
    core = state.core
    leg = _leg(state, core)
    since = burst.since if core.since is None else core.since
    if state.save_failed:
        return  # it waits for the user
    if not _durable(state):
        yield _deadline(core, since, leg, "it saved no checkpoint")
        return
    wanted = (state.lineage, state.durable_version)
    late = [cell for cell in state.everyone if cell.serving and cell.served != wanted]
    for cell in late:
        limit = 2 * _leg(state, cell)
        yield _deadline(cell, burst.since, limit, "its engine did not load the checkpoint")
    if not late:
        yield _deadline(core, since, 3 * leg, "it did not publish its weights")


def _durable(state: JobState) -> bool:
    return state.durable_version == state.version


def _leg(state: JobState, cell: Cell) -> float:
    schedule = state.required_spec.schedule
    whole = cell.engine_up and (cell.pool or cell.trainer_up)
    return schedule.transition_deadline_s if whole else schedule.boot_deadline_s


def _deadline(cell: Cell, since: float, limit_s: float, what: str) -> Deadline:
    return Deadline(cell=cell, at=since + limit_s, limit_s=limit_s, what=what)
