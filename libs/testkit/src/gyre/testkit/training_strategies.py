"""Random jobs with random deaths, for the laws `training` and `recovery`, and how to live them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gyre.testkit.specs import job_spec
from gyre.testkit.training_audit import audit
from gyre.testkit.training_world import Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

# Facts near which a death is worth a try: all that belong to roles, worlds and batches.
MOMENTS = (
    *("transition_started", "role_changed", "burst_started", "batch_opened", "weights_exposed"),
    *("batch_joined", "group_claimed", "micro_step_claimed", "stream_closed"),
    *("join_window_closed", "step_completed", "burst_ended", "checkpoint_saved"),
    *("weights_loaded", "weights_published", "world_formed", "world_ready", "world_joined"),
    *("epoch_fenced", "restored", "trainer_lost", "trainer_ready", "engine_lost"),
)
VICTIMS = ("trainer", "agent", "engine", "scheduler")

STRIKES = st.builds(
    Strike,
    after=st.sampled_from(MOMENTS),
    nth=st.integers(1, 6),
    delay_s=st.sampled_from([0.0, 0.01, 0.05, 0.2, 1.0]),
    victim=st.sampled_from(VICTIMS),
    cell=st.integers(0, 3),
)

JOBS = st.fixed_dictionaries(
    {
        "cells": st.integers(2, 4),
        "capacity": st.sampled_from([2, 4, 8]),
        "phi": st.sampled_from([0.0, 1 / 3, 1.0]),
        "mu": st.integers(1, 3),
        "num_steps": st.integers(3, 5),
        "rho_min": st.sampled_from([1 / 3, 1.0]),
        "tau_s": st.sampled_from([0.0, 0.2]),
    }
)

PACES = st.fixed_dictionaries(
    {
        "num_schedulers": st.sampled_from([1, 1, 2]),
        "lag_s": st.sampled_from([0.01, 0.05, 0.3, 1.0]),
        "micro_step_s": st.sampled_from([0.2, 1.0, 4.0]),
        "execution_s": st.sampled_from([1.0, 3.0]),
    }
)


def live(
    job: dict[str, Any], paces: dict[str, Any], strikes: tuple[Strike, ...], seed: int
) -> TrainingWorld:
    """One whole job, audited. Raises AssertionError for whatever was not kept."""
    fixed = {"heldout": False, "executions_per_group": 2, "groups_per_step": 3}
    with tempfile.TemporaryDirectory() as home:
        world = TrainingWorld(
            spec=job_spec(**{**fixed, **job}),
            home=Path(home),
            seed=seed,
            strikes=strikes,
            **paces,
        )
        run_virtual(world.run())
    audit(world)
    return world
