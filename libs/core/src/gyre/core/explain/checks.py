"""The conditions of a transition and of a core that stays, each with its two sides.

Every number comes from the policy that decides (`gyre.core.scheduling.policies`), so that an
explanation cannot differ from the decision; the words are the policy's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import burst_groups, executions_due
from gyre.core.scheduling.ledger import pool_capacity, rollout_capacity
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import Cell, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition. left, right: its two sides, None where the policy asks nothing. missing: what
    would have to happen, empty when it holds."""

    name: str
    holds: bool
    left: float | None
    relation: str
    right: float | None
    terms: str
    missing: str = ""


def transition_checks(state: JobState, cell: Cell, now: float) -> tuple[Check, ...]:
    """Supply, its timer, and eq. (2), for `cell` as if it were its turn."""
    return _supply(state, cell), _timer(state, cell, now), _waterlevel(state, cell)


def burst_end_checks(state: JobState, capacity: int, *, final: bool) -> tuple[Check, ...]:
    """Of policies that ask; a fixed split stays until the last step."""
    schedule = state.required_spec.schedule
    w, due = state.training.waterlevel, executions_due(state, policy_of(state).cadence)
    holds = w + due <= capacity
    sides = "C_s" if schedule.policy == "colocate" else "C_s + all cells but the core"
    equation = Check(
        name="eq. (3)",
        holds=holds,
        left=w + due,
        relation="<=",
        right=capacity,
        terms=f"w + mu N B = {w} + {due}, against {sides} = {capacity}",
        missing="" if holds else f"{w + due - capacity} executions fewer",
    )
    if schedule.policy == "async":
        return ()
    return (_supply(state, state.core), equation) if final else (equation,)


def _supply(state: JobState, cell: Cell) -> Check:
    holds = policy_of(state).supplied(state, cell)
    schedule = state.required_spec.schedule
    if schedule.streaming or cell.index > 0:
        left, right = transitions.supply(state), transitions.threshold(state)
        terms = (
            f"{state.num_ready_unclaimed} ready and unclaimed groups, capped by the "
            f"{transitions.groups_needed(state)} that the batch needs, against "
            f"rho_min B = {schedule.rho_min:g} * {schedule.groups_per_step}"
        )
    else:
        left, right = state.num_ready_unclaimed, burst_groups(state, policy_of(state).cadence)
        terms = "ready and unclaimed groups against all of the burst's: no streaming"
    if holds and (left < right or not _asks_for_supply(state, cell)):
        follows = schedule.policy == "colocate"
        terms = "it follows the core" if follows else f"policy {schedule.policy} asks for none"
        return Check(name="supply", holds=True, left=None, relation=">=", right=None, terms=terms)
    missing = "" if holds else _missing_groups(state, right - left)
    return Check(
        name="supply",
        holds=holds,
        left=left,
        relation=">=",
        right=right,
        terms=terms,
        missing=missing,
    )


def _asks_for_supply(state: JobState, cell: Cell) -> bool:
    match state.required_spec.schedule.policy:
        case "async":
            return False
        case "colocate":
            return cell.index == 0
        case _:
            return True


def _missing_groups(state: JobState, num: int) -> str:
    if transitions.groups_needed(state) < transitions.threshold(state):
        return "the batch needs too few groups more for another cell to help"
    return f"{max(1, num)} more ready groups"


def _timer(state: JobState, cell: Cell, now: float) -> Check:
    policy, since = policy_of(state), state.supply_since
    tau = policy.timer_s(state, cell)
    elapsed = 0.0 if since is None else now - since
    holds = since is not None and now >= since + tau
    terms, missing = "seconds of unbroken supply, against tau", ""
    if since is None:
        terms, missing = "seconds: the timer does not run", "the supply timer to start"
    elif not holds:
        missing = f"{tau - elapsed:.1f} s more"
    return Check(
        name="timer",
        holds=holds,
        left=elapsed,
        relation=">=",
        right=tau,
        terms=terms,
        missing=missing,
    )


def _waterlevel(state: JobState, cell: Cell) -> Check:
    left, right = state.training.waterlevel, policy_of(state).capacity_after(state, cell)
    missing = "" if left <= right else f"{left - right} executions to end"
    return Check(
        name="eq. (2)",
        holds=left <= right,
        left=left,
        relation="<=",
        right=right,
        terms=_waterlevel_terms(state, cell),
        missing=missing,
    )


def _waterlevel_terms(state: JobState, cell: Cell) -> str:
    counters, policy = state.training, state.required_spec.schedule.policy
    w = f"w = d - f = {counters.dispatched} - {counters.terminated}"
    match policy:
        case "colocate":
            return f"{w}, against C_s = {pool_capacity(state)}: all cells leave as one"
        case "async":
            return f"{w}: a fixed split is not held against it"
        case _:
            return f"{w}, against C_R - C_next = {rollout_capacity(state)} - {cell.capacity}"
