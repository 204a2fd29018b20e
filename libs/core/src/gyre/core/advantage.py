"""Group-relative advantages: what one execution's reward is worth beside its siblings'.

Invariants (properties under the law's name, tests/properties/test_group_law.py):
- the advantages of a group's baseline add up to zero;
- excluded and surplus executions neither get an advantage nor move anybody else's;
- a placeholder's zero reward is in the baseline, but does not count as a valid reward;
- fewer than two valid rewards, or all equal: zero weight, every advantage is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

Disposition = Literal["valid", "excluded", "placeholder", "surplus"]
AdvantageKind = Literal["mean_std", "mean"]

# Rewards closer than this are the same reward: dividing rounding noise by its own standard
# deviation would make full-size advantages of it.
REWARD_RESOLUTION = 1e-9
# Valid rewards without which a group says nothing about its executions.
LEAST_VALID = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an execution's evaluation ended. reward: None for one that is not in the baseline."""

    disposition: Disposition
    reward: float | None

    @property
    def in_baseline(self) -> bool:
        return self.disposition in ("valid", "placeholder")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """advantages: one per outcome, in order; 0 outside the baseline and in a zero-weight group."""

    advantages: tuple[float, ...]
    zero_weight: bool


def group_advantages(outcomes: Sequence[Outcome], kind: AdvantageKind) -> GroupAdvantages:
    """`mean`: r - mean. `mean_std`: (r - mean) / std, the sample standard deviation (n - 1).

    Both over the baseline: valid rewards and placeholders. Raises ValueError for an outcome in the
    baseline without a finite reward.
    """
    baseline = [_reward(outcome) for outcome in outcomes if outcome.in_baseline]
    num_valid = sum(outcome.disposition == "valid" for outcome in outcomes)
    if num_valid < LEAST_VALID or max(baseline) - min(baseline) <= REWARD_RESOLUTION:
        return GroupAdvantages(advantages=(0.0,) * len(outcomes), zero_weight=True)
    mean = math.fsum(baseline) / len(baseline)
    scale = _scale(baseline, mean, kind)
    return GroupAdvantages(
        advantages=tuple(
            (_reward(outcome) - mean) / scale if outcome.in_baseline else 0.0
            for outcome in outcomes
        ),
        zero_weight=False,
    )


def _scale(baseline: Sequence[float], mean: float, kind: AdvantageKind) -> float:
    match kind:
        case "mean":
            return 1.0
        case "mean_std":
            squares = math.fsum((reward - mean) ** 2 for reward in baseline)
            return math.sqrt(squares / (len(baseline) - 1))
        case _:
            assert_never(kind)


def _reward(outcome: Outcome) -> float:
    if outcome.reward is None or not math.isfinite(outcome.reward):
        raise ValueError(f"a {outcome.disposition} execution has reward {outcome.reward}")
    return outcome.reward
