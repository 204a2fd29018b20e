"""What policies say about their answers: sides of an inequality and what they are made of.

Asked by `gyre.core.explain` alone; no decision depends on it. Terms read "names = numbers", and the
numbers come to the side that they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import Cadence, burst_groups
from gyre.core.scheduling.ledger import reserved_capacity
from gyre.core.scheduling.state import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """have: groups that count. wanted: how many must be there; both None where it is no question of
    groups. missing: what would have to happen while they are not there."""

    have: int | None = None
    wanted: int | None = None
    terms: str
    missing: str = ""


def for_core(state: JobState, cadence: Cadence) -> Supply:
    """What `base.begins` counts."""
    if state.required_spec.schedule.streaming:
        return for_batch(state)
    return _for_burst(state, cadence)


def for_batch(state: JobState) -> Supply:
    """What `transitions.supplied` counts: rho_min B of the batch, at least one."""
    schedule = state.required_spec.schedule
    have, wanted = transitions.supply(state), transitions.threshold(state)
    needed = transitions.groups_needed(state)
    return Supply(
        have=have,
        wanted=wanted,
        terms=(
            f"{state.num_ready_unclaimed} ready and unclaimed groups, capped by the {needed} that "
            f"the batch needs, against rho_min B = {schedule.rho_min:g} * "
            f"{schedule.groups_per_step}"
        ),
        missing=(
            "the batch needs too few groups more for another cell to help"
            if needed < wanted
            else _more_groups(wanted - have)
        ),
    )


def _for_burst(state: JobState, cadence: Cadence) -> Supply:
    """What `base.whole_burst_ready` counts."""
    have, wanted = state.num_ready_unclaimed, burst_groups(state, cadence)
    if wanted == 0:
        return Supply(terms="all steps are done: no burst follows", missing="a further step")
    steps = cadence.steps(state, state.num_steps_done)
    return Supply(
        have=have,
        wanted=wanted,
        terms=(
            f"ready and unclaimed groups against {steps} * "
            f"{state.required_spec.schedule.groups_per_step}, all of the burst's: no streaming"
        ),
        missing=_more_groups(wanted - have),
    )


def capacity_terms(state: JobState, names: str, numbers: str) -> str:
    """Of a capacity, less what is reserved for measurements where something is."""
    reserved = reserved_capacity(state)
    if reserved == 0:
        return f"{names} = {numbers}"
    return f"{names} - reserved = {numbers} - {reserved}"


def _more_groups(num: int) -> str:
    return f"{num} more ready {'group' if num == 1 else 'groups'}"
