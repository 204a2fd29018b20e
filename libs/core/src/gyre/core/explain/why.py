"""Why a cell joins training, or does not, and why the core stays after a burst, or does not.

All three checks of a transition hold exactly when the decider's rules would start it: a test
compares the two after every fact, and the numbers with the recorded ones at every decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gyre.core.explain.bursts import BurstEndView, BurstView, burst_end, burst_view
from gyre.core.explain.checks import Check, transition_checks
from gyre.core.explain.journeys import ExecutionTimes
from gyre.core.explain.turns import why_no_turn, why_nobodys_turn
from gyre.core.explain.waiting import Waiting, waiting_for
from gyre.core.scheduling import transitions
from gyre.core.scheduling.ledger import pool_capacity, reserved_capacity, rollout_capacity
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import Cell, JobState

_NO_TIMES: Mapping[str, ExecutionTimes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """turn: why it is not the one whose turn it is, None for the one whose it is."""

    cell: int
    role: str
    capacity: int
    num_executions: int
    turn: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """cell: the one asked about, or whose turn it is; None when it is nobody's. obstacle: why it is
    not its turn (or nobody's), None when it is. checks: of that cell, also when it is not its turn.
    supply_since, due: unix seconds since when the supply timer runs and at which it runs out, None
    while it does not run.
    burst: the one that goes on, or that begins next. burst_end: what its end brings.
    numbers: what the checks are made of, under the paper's names."""

    job: str
    sequence: int
    now: float
    status: str
    phase: str
    policy: str
    cell: int | None
    obstacle: str | None
    checks: tuple[Check, ...]
    supply_since: float | None
    due: float | None
    burst: BurstView | None
    burst_end: BurstEndView | None
    waiting: Waiting | None
    cells: tuple[CellView, ...]
    numbers: dict[str, float]

    @property
    def starts(self) -> bool:
        """The transition would start at `now`."""
        return self.obstacle is None and all(check.holds for check in self.checks)


class UnknownCell(LookupError):
    """The job has no such cell."""


def explain(
    state: JobState,
    now: float,
    cell: int | None = None,
    times: Mapping[str, ExecutionTimes] = _NO_TIMES,
) -> Explanation:
    """Why `cell`, or the next cell, joins training or does not at `now` (unix seconds).

    Raises UnknownCell. Looks at the state and changes nothing. times: see `waiting_for`.
    """
    if cell is not None and cell not in state.cells:
        numbers = ", ".join(str(number) for number in state.cells) or "none yet"
        raise UnknownCell(f"cell {cell} is not the job's; its cells: {numbers}")
    policy = policy_of(state)
    turn = policy.next_cell(state) if state.status == "running" else None
    asked = turn if cell is None else state.cells[cell]
    obstacle = why_nobodys_turn(state) if asked is None else why_no_turn(state, asked)
    return Explanation(
        job=state.job,
        sequence=state.sequence,
        now=now,
        status=state.status,
        phase=state.phase,
        policy=state.required_spec.schedule.policy,
        cell=asked.cell if asked else None,
        obstacle=obstacle,
        checks=transition_checks(state, asked, now) if asked and not asked.pool else (),
        supply_since=state.supply_since,
        due=_due(state, turn),
        burst=burst_view(state),
        burst_end=burst_end(state),
        waiting=waiting_for(state, times),
        cells=tuple(_cell_view(state, one) for one in state.everyone),
        numbers=_numbers(state, asked),
    )


def _numbers(state: JobState, cell: Cell | None) -> dict[str, float]:
    schedule, counters = state.required_spec.schedule, state.training
    numbers: dict[str, float] = {
        "d": counters.dispatched,
        "p": counters.started,
        "f": counters.terminated,
        "w": counters.waterlevel,
        "C_R": rollout_capacity(state),
        "C_s": pool_capacity(state),
        "reserved": reserved_capacity(state),
        "ready": state.num_ready_unclaimed,
        "needed": transitions.groups_needed(state),
        "B": schedule.groups_per_step,
        "N": schedule.group_size,
        "mu": schedule.mu,
        "rho_min": schedule.rho_min,
        "tau_s": schedule.tau_s,
    }
    return numbers if cell is None else numbers | {"C_next": cell.capacity}


def _due(state: JobState, turn: Cell | None) -> float | None:
    if turn is None or state.supply_since is None:
        return None
    return state.supply_since + policy_of(state).timer_s(state, turn)


def _cell_view(state: JobState, cell: Cell) -> CellView:
    return CellView(
        cell=cell.cell,
        role=cell.role,
        capacity=cell.capacity,
        num_executions=len(cell.executions),
        turn=why_no_turn(state, cell),
    )
