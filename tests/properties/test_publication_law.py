"""Law `training` with checkpoints that reach engines over the network, whatever becomes of calls.

The same worlds and the same audit as `test_training_law`: every engine that serves a version's name
serves its weights, what is published is durable and confirmed, and the job ends whoever dies when.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.testkit.training_strategies import JOBS, PACES, STRIKES, live
from gyre.testkit.training_world import Strike, TrainingWorld

QUICK = {"cells": 3, "capacity": 4, "phi": 1 / 3, "mu": 2, "num_steps": 4, "tau_s": 0.0}
PACE: dict[str, Any] = {"micro_step_s": 1.0, "execution_s": 1.0}
IN_FLIGHT = ("hold", "in_place", "retract")


def _by_wire(in_flight: str = "retract") -> dict[str, Any]:
    return {"weights": {"publication": "tcp", "in_flight": in_flight}}


def _said(world: TrainingWorld, kind: type) -> list[Any]:
    return [fact.body for fact in world.log if isinstance(fact.body, kind)]


@settings(max_examples=12)
@given(
    job=JOBS,
    paces=PACES,
    strikes=st.lists(STRIKES, max_size=4).map(tuple),
    seed=st.integers(0, 10_000),
    in_flight=st.sampled_from(IN_FLIGHT),
)
def test_a_job_whose_engines_are_sent_their_weights_ends_whoever_dies_when(
    job: dict[str, Any],
    paces: dict[str, Any],
    strikes: tuple[Strike, ...],
    seed: int,
    in_flight: str,
) -> None:
    live(job | {"sections": _by_wire(in_flight)}, paces, strikes, seed)


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_every_engine_but_the_cores_is_sent_each_published_version(in_flight: str) -> None:
    # No satellite joins: engines take their weights while they serve.
    job = QUICK | {"tau_s": 3.0, "sections": _by_wire(in_flight)}
    world = live(job, PACE | {"micro_step_s": 0.2}, (), 1)
    published = _said(world, cell_events.WeightsPublished)
    assert len(published) == 2
    offers = [
        body for body in _said(world, cell_events.WeightsExposed) if body.source == "checkpoint"
    ]
    assert [body.version for body in offers] == [body.version for body in published]
    loaded = [body for body in _said(world, cell_events.WeightsLoaded) if body.cell != 0]
    assert loaded
    assert {(body.transport, body.in_flight) for body in loaded} == {("tcp", in_flight)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("victim", ["agent", "trainer"])
def test_a_core_that_dies_with_its_offer_offers_again(victim: str, seed: int) -> None:
    strike = Strike(after="checkpoint_saved", nth=1, delay_s=0.05, victim=victim, cell=0)
    world = live(QUICK | {"sections": _by_wire()}, PACE, (strike,), seed)
    assert len(_said(world, cell_events.WeightsPublished)) >= 2


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_dies_later_is_sent_the_checkpoint_before_it_serves(seed: int) -> None:
    strike = Strike(after="weights_published", nth=1, delay_s=0.2, victim="engine", cell=2)
    world = live(QUICK | {"sections": _by_wire()}, PACE, (strike,), seed)
    lost = [fact.sequence for fact in world.log if isinstance(fact.body, cell_events.EngineLost)]
    assert lost
    back = [
        fact.body
        for fact in world.log
        if isinstance(fact.body, cell_events.RoleChanged)
        and fact.body.cell == 2
        and fact.body.role == "rollout"
        and fact.sequence > lost[0]
    ]
    assert back[0].version >= 2
    assert _said(world, sched.JobFinished)
