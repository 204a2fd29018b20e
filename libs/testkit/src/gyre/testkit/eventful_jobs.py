"""Random lives of a job with everything that can happen to one, for laws of the log as such: cells
that come and go, oversampling, bounds on staleness, pauses, drains, cancellations, every policy."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events import requests as request_events
from gyre.core.scheduling import JobState
from gyre.testkit.losing_world import Blow, LosingWorld
from gyre.testkit.scheduling_strategies import SCHEDULES
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec

_POLICIES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "gyre+": {"policy": "gyre+"},
    "whole bursts": {"streaming": False},
    "async": {"policy": "async", "training_cells": 1},
    "colocate": {"policy": "colocate", "phi": 0.0},
}
_DEADLINES: dict[str, Any] = {
    "transition_deadline_s": 20.0,
    "boot_deadline_s": 30.0,
    "silence_deadline_s": 8.0,
}
_BLOWS = st.builds(
    Blow,
    nth=st.integers(3, 200),
    cell=st.integers(0, 3),
    harm=st.sampled_from(["dead", "hung", "cut_off", "engine", "trainer", "released"]),
)
_REQUESTS: dict[str, tuple[Body, ...]] = {
    "none": (),
    "pause": (request_events.PauseRequested(reason="r"), request_events.ResumeRequested()),
    "drain": (request_events.DrainRequested(reason="r"),),
    "cancel": (request_events.CancelRequested(reason="r"),),
}


@st.composite
def eventful_jobs(draw: st.DrawFn) -> World:
    """A world whose job has ended; its `log` is the life."""
    source = random.Random(draw(st.integers(0, 10_000)))
    schedule = {**draw(SCHEDULES), **_POLICIES[draw(st.sampled_from(sorted(_POLICIES)))]}
    blows = tuple(draw(st.lists(_BLOWS, max_size=4)))
    heldout = draw(st.sampled_from([(), ("h0", "h1")]))
    # Cells that train all together leave no slot to reserve.
    measures = bool(heldout) and schedule.get("policy") != "colocate" and draw(st.booleans())
    evaluation = {"heldout_every": 1, "heldout_capacity": 1} if measures else {}
    lengths = [source.lognormvariate(0.5, 1.0) for _ in range(3000)]
    world = LosingWorld(
        job_spec(
            **schedule, **_DEADLINES, heldout=bool(heldout), sections={"evaluation": evaluation}
        ),
        lengths.__getitem__,
        Timings(micro_step=source.choice([0.1, 1.0, 4.0]), switch=source.choice([0.1, 2.0])),
        heldout_tasks=heldout,
        blows=blows,
        spare=1,
    )
    nth, asked = draw(st.integers(3, 150)), _REQUESTS[draw(st.sampled_from(sorted(_REQUESTS)))]

    def ask(state: JobState, body: Body, now: float) -> None:
        if len(world.log) == nth:
            for place, request in enumerate(asked):
                world.later(0.01 + 5 * place, partial(world.fact, request))

    world.on_fact = ask
    world.run()
    return world
