"""Staleness from the log alone: d = v_t - v_d for every group, and the identity it should meet.

Under boundary dispatch a group holds its slot from dispatch to consumption, so with
Q = (phi + mu) B in flight the long-run mean is phi + (mu - 1) / 2 (Theorem A.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the scheduler's own cadence asks for the identity
    from gyre.core.scheduling.state import Group


def group_staleness(group: Group) -> int | None:
    """v_t - v_d in optimizer steps; None while the group is unclaimed."""
    if group.claimed_version is None:
        return None
    return group.claimed_version - group.version


def mean_staleness(groups: Iterable[Group]) -> float | None:
    """Mean over the claimed groups; None when there is none."""
    values = [d for group in groups if (d := group_staleness(group)) is not None]
    return sum(values) / len(values) if values else None


def expected_staleness(phi: float, mu: int) -> float:
    """phi + (mu - 1) / 2, in optimizer steps."""
    return phi + (mu - 1) / 2
