"""Continuous dispatch makes groups staler than boundary dispatch by 1 + R/B (docs/staleness.md)."""

from __future__ import annotations

import random

import pytest

from gyre.core.staleness import expected_staleness
from gyre.simulator.continuous import continuous_gap, mean_continuous_staleness


@pytest.mark.parametrize("num_running", [1, 8, 24])
@pytest.mark.parametrize(("phi", "mu"), [(0.0, 1), (0.5, 3), (1.5, 1), (0.0, 4)])
def test_the_gap_to_boundary_dispatch_is_one_plus_r_over_b(
    phi: float, mu: int, num_running: int
) -> None:
    source = random.Random(num_running)
    lengths = [source.lognormvariate(0.0, 0.6) for _ in range(997)]
    mean = mean_continuous_staleness(
        phi=phi,
        mu=mu,
        groups_per_step=8,
        num_running=num_running,
        num_steps=2000,
        duration=lambda number: lengths[number % len(lengths)],
    )
    gap = mean - expected_staleness(phi, mu)
    assert gap == pytest.approx(continuous_gap(num_running, 8), rel=0.01)
