"""Cells that leave a job and join it: what scheduler, cluster, cells and routes make of the log."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.cell import Holdings, orders
from gyre.core.routing import Routes
from gyre.core.scheduling import next_wake
from gyre.core.scheduling.cluster import (
    MAX_LOSSES,
    next_cell_join,
    next_job_start,
)
from gyre.testkit.facts import (
    AT_0,
    burst_ended,
    published,
    role_changed,
    saved,
    step_completed,
    to_training,
)
from gyre.testkit.specs import job_spec
from gyre.testkit.told_job import JOB, ToldJob


def _lost(cell: int) -> sched.CellLost:
    return sched.CellLost(**AT_0, cell=cell, reason="r")


def test_a_lost_cell_stops_says_that_it_is_offline_and_is_free() -> None:
    told = ToldJob().in_rollout().tell(_lost(2))
    assert told.state.order == (0, 1)
    assert isinstance(told.duty(2), orders.StopJob)
    assert next_cell_join(told.cluster, 0.0) == (
        JOB,
        sched.CellJoined(based_on=told.cluster.sequence, now=0.0, cell=3, index=2),
    )
    told.tell(role_changed(2, "offline"))
    assert told.duty(2) is None
    joining = next_cell_join(told.cluster, 0.0)
    assert joining is not None
    assert joining[1].cell == 2


def test_what_a_lost_cell_still_says_counts_for_nobody() -> None:
    """It was only cut off, and has not heard yet."""
    told = ToldJob().in_batch().tell(_lost(1))
    told.tell(
        role_changed(1, "rollout"),
        cell_events.TrainerReady(cell=1, pid=2),
        cell_events.BatchJoined(cell=1, batch="l1-s0000", version=0, lineage=1),
        step_events.MicroStepClaimed(batch="l1-s0000", index=0, cell=1, epoch=1),
    )
    assert told.state.cells[1].role == "lost"
    batch = told.state.batch
    assert batch is not None
    assert (set(batch.joined), batch.owners) == ({0}, {})
    view = told.cells[0]
    assert view.batch is not None
    assert (view.batch.joined, view.batch.owners) == ({0}, {})
    assert 1 not in view.in_rollout | view.trainers


def test_a_step_and_a_checkpoint_of_a_core_that_only_seemed_lost_are_void() -> None:
    told = ToldJob().in_batch().tell(_lost(0), step_completed(1), saved(1), published(1))
    assert (told.state.version, told.state.durable_version, told.state.published) == (0, 0, 0)
    assert (told.cells[1].version, told.cells[1].checkpoint) == ((1, 0), None)
    restored = told.decision()
    assert isinstance(restored, sched.Restored)
    assert (restored.version, restored.lineage) == (0, 2)
    told.tell(restored, saved(1), published(1))
    assert (told.state.durable_version, told.state.published) == (0, 0)
    assert told.cells[1].version == told.cells[1].published == (2, 0)


def test_the_next_cell_is_the_core_and_restores_what_is_durable() -> None:
    told = ToldJob().burst_over().tell(saved(1), published(1), _lost(0))
    assert told.state.core.cell == 1
    checkpoint = told.cells[1].checkpoint
    assert checkpoint is not None
    assert told.duty(1) == orders.LoadWeights(checkpoint=checkpoint)
    told.held[1].engine_version = (1, 1)
    assert told.duty(1) is None
    restored = told.decision()
    assert isinstance(restored, sched.Restored)
    told.tell(restored)
    told.held[1].engine_version = (2, 1)
    assert told.duty(1) == orders.RestoreCore(path="/c1", version=(2, 1))
    assert told.state.burst is None


def test_a_checkpoint_that_a_lost_core_did_not_publish_the_next_one_does() -> None:
    told = ToldJob().burst_over().tell(saved(1), _lost(0))
    restored = told.decision()
    assert isinstance(restored, sched.Restored)
    told.tell(restored)
    told.held[1].trainer_version = told.held[1].engine_version = (2, 1)
    assert told.duty(1) is None
    for cell in (1, 2):
        told.tell(
            cell_events.WeightsLoaded(cell=cell, version=1, lineage=2, checksum="c"),
        )
    publish = told.duty(1)
    assert isinstance(publish, orders.Publish)
    assert publish.confirmed_by == (1, 2)
    told.tell(published(1, lineage=2))
    assert told.state.published == 1
    assert told.state.burst is None
    assert told.state.dispatch_due


def test_a_cell_joins_in_the_middle_with_the_newest_weights_and_the_free_place() -> None:
    told = ToldJob(cells=3).burst_over().tell(saved(1), published(1), _lost(1))
    told.tell(sched.CellJoined(**AT_0, cell=3, index=2))
    told.held[3] = Holdings()
    assert told.state.order == (0, 2, 3)
    assert (told.state.cells[3].place, told.cells[3].place) == (1, 1)
    assert told.duty(3) == orders.StartEngine(path="/c1", version=(1, 1))
    told.held[3].engine_version = (1, 1)
    assert told.duty(3) == orders.StartTrainer(path="/c1", version=(1, 1))
    told.held[3].trainer_version = (1, 1)
    told.tell(cell_events.TrainerReady(cell=3, pid=1))
    assert told.duty(3) == orders.ReportRollout(version=(1, 1))
    told.tell(role_changed(3, "rollout", 1))
    assert told.duty(3) is None
    told.tell(sched.WorldFormed(**AT_0, epoch=2, cells=(0, 2, 3)))
    assert told.duty(3) == orders.AwaitWorld(epoch=2)


def test_a_cell_sent_back_before_its_bursts_end_serves_with_what_is_published() -> None:
    told = ToldJob().in_batch()
    told.held[0].accumulating = "l1-s0000"
    back = sched.TransitionStarted(**AT_0, cell=0, to="rollout", waterlevel=1, capacity_after=8)
    told.tell(back)
    assert told.state.batch is None
    assert told.duty(0) == orders.ReturnToRollout(checkpoint=None, version=(1, 0))
    restored = told.decision()
    assert isinstance(restored, sched.Restored)
    told.tell(restored)
    assert told.duty(0) == orders.RestoreCore(path=None, version=(2, 0))


def test_an_engine_that_died_has_as_long_as_a_boot_from_when_the_scheduler_saw_it() -> None:
    told = ToldJob().in_rollout().tell(cell_events.EngineLost(cell=2, error="e"))
    watched = told.decision(50.0)
    assert watched == sched.CellWatched(based_on=told.state.sequence, now=50.0, cell=2)
    assert watched is not None
    told.tell(watched)
    assert next_wake(told.state) == 150.0
    assert not isinstance(told.decision(149.9), sched.CellLost)
    lost = told.decision(150.0)
    assert isinstance(lost, sched.CellLost)
    assert lost.reason == "its engine did not come into rollout within 100 s"


def test_a_satellite_has_time_to_go_back_only_from_when_the_core_is_durable() -> None:
    told = ToldJob().in_batch()
    told.tell(to_training(1), role_changed(1, "training"), step_completed(1))
    told.tell(burst_ended(core_stays=False, now=100.0))
    late = told.decision(110.0)
    assert isinstance(late, sched.CellLost)
    assert (late.cell, late.reason) == (0, "it saved no checkpoint within 10 s")
    told.tell(saved(1), cell_events.WeightsLoaded(cell=2, version=1, lineage=1, checksum="c"))
    assert not isinstance(told.decision(119.0), sched.CellLost)
    late = told.decision(120.0)
    assert isinstance(late, sched.CellLost)
    assert (late.cell, late.reason) == (1, "it did not come back into rollout within 20 s")


def test_a_running_job_takes_a_free_cell_before_a_waiting_one_starts() -> None:
    told = ToldJob().in_rollout().tell(_lost(1))
    spec = job_spec(cells=1, phi=0.0)
    told.tell(sched.JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()), job="other")
    assert next_cell_join(told.cluster, 0.0) is not None
    assert next_job_start(told.cluster, 0.0, frozenset({3})) is None
    told.tell(sched.CellJoined(**AT_0, cell=3, index=2))
    assert next_cell_join(told.cluster, 0.0) is None
    assert next_job_start(told.cluster, 0.0) is None


def test_a_cell_that_was_asked_back_or_is_silent_or_was_lost_too_often_is_not_taken() -> None:
    told = ToldJob().in_rollout()
    told.tell(request_events.ReleaseRequested(cell=2))
    released = told.decision()
    assert isinstance(released, sched.CellReleased)
    told.tell(released, role_changed(2, "offline"))
    assert next_cell_join(told.cluster, 0.0, frozenset({3})) is None
    for _ in range(MAX_LOSSES):
        told.tell(sched.CellJoined(**AT_0, cell=3, index=2), _lost(3), role_changed(3, "offline"))
    assert next_cell_join(told.cluster, 0.0) is None


@pytest.mark.parametrize("kind", [sched.CellLost, sched.CellReleased])
def test_a_route_follows_the_moves_of_a_cell_that_left(kind: type[Any]) -> None:
    routes = Routes()
    order = sched.StartOrder(execution="e", group="g", task="t", cell=1, seed=0)
    routes.evolve(JOB, 1, sched.StartOrdered(**AT_0, orders=(order,)))
    move = sched.Move(execution="e", source=1, destination=2)
    reason = {"reason": "r"} if kind is sched.CellLost else {}
    changed = routes.evolve(JOB, 2, kind(**AT_0, cell=1, moves=(move,), **reason))
    assert (changed.executions, changed.cells) == (("e",), (1,))
    assert routes.cell("e") == 2
