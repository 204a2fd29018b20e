"""Random schedules for the scheduler's laws, and one way to live through them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import TerminationReason
from gyre.core.scheduling import JobState
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec

OnFact = Callable[[JobState, Body, float], None]

_PLAIN: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "cells": st.integers(2, 4),
        "capacity": st.integers(3, 9),
        "groups_per_step": st.sampled_from([2, 4, 6]),
        "executions_per_group": st.integers(2, 5),
        "phi": st.sampled_from([0.0, 0.5, 1.5]),
        "mu": st.integers(1, 3),
        "num_steps": st.integers(1, 5),
        "rho_min": st.sampled_from([0.2, 0.5, 1.0]),
        "tau_s": st.sampled_from([0.0, 0.5, 2.0]),
    }
)


@st.composite
def _schedules(draw: st.DrawFn) -> dict[str, Any]:
    """Oversampled or not, with a bound on staleness or without."""
    schedule = draw(_PLAIN)
    surplus = draw(st.sampled_from([0, 0, 1, 3]))
    if surplus:
        schedule["executions_started"] = schedule["executions_per_group"] + surplus
        schedule["keep"] = draw(st.sampled_from(["first_finished", "drawn"]))
    slack = draw(st.sampled_from([None, 0, 1]))
    if slack is not None:
        least = math.ceil(schedule["phi"]) + schedule["mu"] - 1
        schedule["max_staleness"] = least + slack
        schedule["on_stale"] = draw(st.sampled_from(["wait", "drop"]))
    return schedule


SCHEDULES = _schedules()
# One in ten breaks, one in ten runs into its time-out.
_REASONS: tuple[TerminationReason, ...] = ("infrastructure", "timeout", *(("completed",) * 8))


def live(schedule: dict[str, Any], seed: int, on_fact: OnFact | None = None) -> World:
    """One whole job with lognormal executions and random speeds of everything else."""
    source = random.Random(seed)
    timings = Timings(micro_step=source.choice([0.1, 1.0, 4.0]), switch=source.choice([0.1, 2.0]))
    lengths = [source.lognormvariate(0.5, 1.0) for _ in range(2000)]
    reasons = [source.choice(_REASONS) for _ in range(2000)]
    world = World(job_spec(**schedule), lengths.__getitem__, timings, reasons=reasons.__getitem__)
    if on_fact is not None:
        world.on_fact = on_fact
    world.run()
    return world


every_job = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
