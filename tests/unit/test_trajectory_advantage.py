"""Group-relative advantages, by hand."""

from __future__ import annotations

import pytest

from gyre.core.advantage import Outcome, group_advantages

EXCLUDED = Outcome(disposition="excluded", reward=None)
PLACEHOLDER = Outcome(disposition="placeholder", reward=0.0)


def valid(*rewards: float) -> list[Outcome]:
    return [Outcome(disposition="valid", reward=reward) for reward in rewards]


def test_mean_only() -> None:
    weighed = group_advantages(valid(0.0, 1.0, 0.5, 0.5), "mean")
    assert weighed.advantages == (-0.5, 0.5, 0.0, 0.0)
    assert not weighed.zero_weight


def test_mean_and_sample_standard_deviation() -> None:
    weighed = group_advantages(valid(0.0, 1.0), "mean_std")
    assert weighed.advantages == pytest.approx((-(0.5**0.5), 0.5**0.5))


def test_an_excluded_execution_is_out_of_the_baseline() -> None:
    weighed = group_advantages([*valid(0.0, 1.0), EXCLUDED], "mean")
    assert weighed.advantages == (-0.5, 0.5, 0.0)


def test_a_placeholder_is_in_the_baseline() -> None:
    weighed = group_advantages([*valid(1.0, 1.0), PLACEHOLDER], "mean")
    assert weighed.advantages == pytest.approx((1 / 3, 1 / 3, -2 / 3))


def test_a_placeholder_is_not_a_valid_reward() -> None:
    weighed = group_advantages([*valid(1.0), PLACEHOLDER, EXCLUDED], "mean")
    assert weighed.zero_weight
    assert weighed.advantages == (0.0, 0.0, 0.0)


def test_equal_rewards_have_zero_weight_rounding_included() -> None:
    assert group_advantages(valid(0.3, 0.1 + 0.2, 0.3), "mean_std").zero_weight


def test_no_outcome_at_all_has_zero_weight() -> None:
    assert group_advantages([EXCLUDED, EXCLUDED], "mean_std").zero_weight


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="valid execution has reward nan"):
        group_advantages(valid(float("nan"), 1.0), "mean")
