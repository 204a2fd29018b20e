"""Law `recovery` with snapshots: schedulers that die again and again go on from their newest one.

Everything that `training_audit` holds of a run that reads the whole log holds here too, above all
that each decision follows from the log it names.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gyre.testkit.training_strategies import JOBS, MOMENTS, PACES, STRIKES, live
from gyre.testkit.training_world import Strike

DEATHS = st.lists(
    st.builds(
        Strike,
        after=st.sampled_from(MOMENTS),
        nth=st.integers(1, 6),
        delay_s=st.sampled_from([0.0, 0.01, 0.2]),
        victim=st.just("scheduler"),
        cell=st.integers(0, 1),
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.timeout(300)
@settings(max_examples=8, deadline=None)
@given(
    job=JOBS,
    paces=PACES,
    deaths=DEATHS,
    others=st.lists(STRIKES, max_size=2),
    every=st.integers(5, 60),
    seed=st.integers(0, 10_000),
)
def test_a_scheduler_that_dies_goes_on_from_its_snapshot_and_the_laws_hold(
    job: dict[str, Any],
    paces: dict[str, Any],
    deaths: list[Strike],
    others: list[Strike],
    every: int,
    seed: int,
) -> None:
    live(job, {**paces, "snapshot_every": every}, (*deaths, *others), seed)


def test_it_does_so_in_the_runs_above() -> None:
    job = {"cells": 2, "capacity": 4, "phi": 1 / 3, "mu": 2, "num_steps": 3, "tau_s": 0.0}
    deaths = tuple(
        Strike(after="batch_opened", nth=nth, delay_s=0.1, victim="scheduler", cell=0)
        for nth in (1, 2, 3)
    )
    with capture_logs() as lines:
        world = live(job, {"snapshot_every": 10}, deaths, seed=1)
    loaded = [line["sequence"] for line in lines if line["event"] == "snapshot_loaded"]
    assert len(loaded) == 3
    assert sorted(loaded) == loaded
    assert loaded[-1] <= world.log[-1].sequence
    assert not [line for line in lines if line["event"] == "snapshot_refused"]
