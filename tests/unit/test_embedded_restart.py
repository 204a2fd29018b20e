"""The restart policy: quick at first, slower in a streak, bounded in rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.embedded.restart import RestartPolicy

POLICY = RestartPolicy()


def test_a_first_death_is_followed_at_once() -> None:
    assert POLICY.delay([100.0], now=100.0) == POLICY.first_delay_s


def test_the_delay_doubles_in_a_streak_up_to_its_maximum() -> None:
    deaths = [100.0 + i for i in range(8)]
    delays = [POLICY.delay(deaths[: n + 1], now=deaths[n]) for n in range(8)]
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_a_quiet_time_forgets_the_streak() -> None:
    deaths = [100.0, 101.0, 102.0, 102.0 + POLICY.quiet_s + 1]
    assert POLICY.delay(deaths, now=deaths[-1]) == POLICY.first_delay_s


@given(lifetimes=st.lists(st.floats(0.0, 60.0), min_size=1, max_size=80))
def test_no_window_holds_more_restarts_than_allowed(lifetimes: list[float]) -> None:
    policy = RestartPolicy(first_delay_s=0.01, max_delay_s=0.02, window_s=10.0, max_in_window=4)
    now, deaths, restarts = 0.0, [], []
    for lifetime in lifetimes:
        now += lifetime
        deaths.append(now)
        now += policy.delay(deaths, now)
        restarts.append(now)
    for start, end in zip(restarts, restarts[policy.max_in_window :], strict=False):
        assert end - start >= policy.window_s - 1e-6
