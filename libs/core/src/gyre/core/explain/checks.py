"""The conditions of a transition and of a core that stays, each with its two sides.

Every number comes from the policy that decides (`gyre.core.scheduling.policies`), so that an
explanation cannot differ from the decision; the words are the policy's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import Due
from gyre.core.scheduling.policies import BurstEnd, policy_of
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


def burst_end_checks(state: JobState, end: BurstEnd, *, final: bool) -> tuple[Check, ...]:
    """All hold exactly when the core stays. Before the burst's last step, eq. (3) alone."""
    asks = policy_of(state).asks_waterlevel
    equation = (_dispatch_fits(state, end),) if asks else ()
    if not final:
        return equation
    supply = (_supply(state, state.core),) if asks and not transitions.steps_done(state) else ()
    return (_goes_on(state), *supply, *equation)


def _goes_on(state: JobState) -> Check:
    """The core has a further burst to stay for."""
    done, total = state.num_steps_done, state.required_spec.schedule.num_steps
    terms, missing = f"{done} of {total} steps are done", ""
    if state.burst is not None and state.burst.holds(done):
        terms += "; dropped groups leave too few for another one in this burst"
    if transitions.steps_done(state):
        missing = "a further step"
    elif state.drain_requested is not None:
        terms = missing = "the job is drained: no further burst begins"
    elif state.core.cell in state.released:
        terms = missing = f"cell {state.core.cell}, the core, is wanted back"
    return Check(
        name="next burst",
        holds=not missing,
        left=None,
        relation=">=",
        right=None,
        terms=terms,
        missing=missing,
    )


def _dispatch_fits(state: JobState, end: BurstEnd) -> Check:
    left = state.training.waterlevel + end.due.executions
    sides = f"{_dispatch_terms(state, end.due)}, against {policy_of(state).burst_end_terms(state)}"
    why = _why_so_many(state, end.due)
    return Check(
        name="eq. (3)",
        holds=left <= end.capacity,
        left=left,
        relation="<=",
        right=end.capacity,
        terms=f"{sides}; {why}" if why else sides,
        missing="" if left <= end.capacity else f"{left - end.capacity} executions fewer",
    )


def _dispatch_terms(state: JobState, due: Due) -> str:
    schedule, w = state.required_spec.schedule, state.training.waterlevel
    size = "N" if due.group_size == schedule.executions_per_group else "N'"
    if _is_mu_bursts(state, due):
        numbers = f"{schedule.mu} * {due.group_size} * {schedule.groups_per_step}"
        return f"w + mu {size} B = {w} + {numbers}"
    return f"w + {size} * due groups = {w} + {due.group_size} * {due.groups}"


def _why_so_many(state: JobState, due: Due) -> str:
    """Why other than mu B groups are due, empty when it is mu B."""
    if _is_mu_bursts(state, due):
        return ""
    if due.left <= 0:
        return "every group of the job is dispatched"
    if due.groups == due.left:
        return "they are the job's last"
    return (
        f"the next burst, of {steps_text(due.steps)}, begins with {due.depth} groups in flight, "
        f"{due.in_flight} of them dispatched before"
    )


def steps_text(num: int) -> str:
    return f"{num} step" if num == 1 else f"{num} steps"


def _is_mu_bursts(state: JobState, due: Due) -> bool:
    schedule = state.required_spec.schedule
    return due.groups == schedule.mu * schedule.groups_per_step


def _supply(state: JobState, cell: Cell) -> Check:
    policy = policy_of(state)
    holds, supply = policy.supplied(state, cell), policy.supply_of(state, cell)
    return Check(
        name="supply",
        holds=holds,
        left=supply.have,
        relation=">=",
        right=supply.wanted,
        terms=supply.terms,
        missing="" if holds else supply.missing,
    )


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
    counters = state.training
    left, right = counters.waterlevel, policy_of(state).capacity_after(state, cell)
    w = f"w = d - f = {counters.dispatched} - {counters.terminated}"
    missing = "" if left <= right else f"{left - right} executions to end"
    return Check(
        name="eq. (2)",
        holds=left <= right,
        left=left,
        relation="<=",
        right=right,
        terms=f"{w}, against {policy_of(state).capacity_after_terms(state, cell)}",
        missing=missing,
    )
