"""Interleavings too rare for chance, one by one: what a cell and the scheduler make of a log."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.cell import Holdings, orders
from gyre.testkit.facts import (
    AT_0,
    batch_opened,
    burst_ended,
    published,
    role_changed,
    saved,
    step_completed,
    terminated,
    to_training,
)
from gyre.testkit.told_job import ToldJob

BATCH = "l1-s0000"


def _joined(cell: int) -> cell_events.BatchJoined:
    return cell_events.BatchJoined(cell=cell, batch=BATCH, version=0, lineage=1)


def _closed(epoch: int, *members: int) -> sched.JoinWindowClosed:
    return sched.JoinWindowClosed(**AT_0, batch=BATCH, epoch=epoch, members=members, final=True)


def _fenced(epoch: int, *lost: int, dismissed: tuple[int, ...] = ()) -> sched.EpochFenced:
    return sched.EpochFenced(batch=BATCH, epoch=epoch, lost=lost, dismissed=dismissed, members=(0,))


def _emitted(index: int) -> group_events.MicroStepEmitted:
    return group_events.MicroStepEmitted(
        batch=BATCH,
        index=index,
        digest="d",
        executions=(),
        num_rows=1,
        row_tokens=1,
        num_tokens=1,
        num_targets=1,
    )


def _in_training(**spec: Any) -> ToldJob:
    """Batch open, all three cells in training and in world 1, one micro-step emitted."""
    told = ToldJob(**spec).in_training(0, 1, 2, num_steps=1)
    told.tell(
        cell_events.WeightsExposed(cell=0, version=0, lineage=1, host="h", port=1, checksum="c"),
        _emitted(0),
    )
    told.held[0].exposed = (1, 0)
    return told


def _accumulating(told: ToldJob, *cells: int) -> ToldJob:
    for cell in cells:
        told.tell(_joined(cell))
        told.held[cell].accumulating = BATCH
    return told


def test_a_window_closed_in_a_fenced_epoch_is_void_for_all() -> None:
    """A second scheduler decided it before it had seen the fence."""
    told = _accumulating(_in_training(), 0, 1)
    told.tell(cell_events.TrainerLost(cell=1, error="e"), _fenced(1, 1), _closed(1, 0, 1))
    assert told.state.batch is not None
    assert told.state.batch.members is None
    views = [cell.batch for cell in told.cells[:3]]
    assert all(view is not None and view.members is None for view in views)
    assert isinstance(told.decision(), sched.WorldFormed)


def test_a_cell_that_left_the_batch_claims_nothing_however_late_its_join_comes() -> None:
    told = _accumulating(_in_training(), 0, 1, 2)
    told.tell(cell_events.TrainerLost(cell=1, error="e"), _fenced(1, 1, dismissed=(2,)))
    told.tell(_joined(2))
    assert told.duty(2) is None
    assert told.state.batch is not None
    assert set(told.state.batch.joined) == {0}


def test_a_death_between_a_fences_decision_and_its_event_is_fenced_next() -> None:
    told = _accumulating(_in_training(), 0, 1, 2)
    told.tell(cell_events.TrainerLost(cell=2, error="e"))
    first = told.decision()
    assert isinstance(first, sched.EpochFenced)
    assert first.lost == (2,)
    told.tell(cell_events.TrainerLost(cell=1, error="e"), first)
    second = told.decision()
    assert isinstance(second, sched.EpochFenced)
    assert second.lost == (1,)


def test_cells_join_a_batch_in_the_order_of_the_world() -> None:
    told = _in_training()
    assert isinstance(told.duty(0), orders.JoinBatch)
    assert told.duty(1) is None
    _accumulating(told, 0)
    assert told.duty(2) is None
    assert isinstance(told.duty(1), orders.JoinBatch)
    _accumulating(told, 1)
    assert isinstance(told.duty(2), orders.JoinBatch)


@pytest.mark.parametrize(
    ("pipeline", "num_left", "alone"), [(1, 2, True), (1, 3, False), (2, 0, False)]
)
def test_a_cell_takes_none_ahead_that_another_could_have(
    pipeline: int, num_left: int, alone: bool
) -> None:
    """Three cells: with fewer left than that, one is computed before the next is claimed."""
    layout = {"training": {"layout": {"pipeline": pipeline}}}
    told = _accumulating(_in_training(sections=layout), 0)
    told.tell(*map(_emitted, range(1, 1 + num_left)))
    told.tell(step_events.MicroStepClaimed(batch=BATCH, index=0, cell=0, epoch=1))
    duty = told.duty(0)
    assert isinstance(duty, orders.TrainMicroStep)
    assert duty.alone == alone
    told.held[0].trained = {0}
    claim = told.duty(0)
    assert (claim.index if isinstance(claim, orders.ClaimMicroStep) else None) == (
        1 if num_left else None
    )


def test_who_comes_after_the_window_has_closed_stays_out() -> None:
    told = _accumulating(_in_training(), 0)
    told.tell(_closed(1, 0))
    assert told.duty(1) is None
    told.tell(_joined(1))
    told.held[1].accumulating = BATCH
    assert told.duty(1) is None


def test_a_member_begins_anew_in_a_new_world_though_the_window_has_closed_again() -> None:
    told = _accumulating(_in_training(), 0, 1)
    told.tell(
        step_events.MicroStepClaimed(batch=BATCH, index=0, cell=1, epoch=1),
        cell_events.WorldBroken(cell=0, epoch=1, error="e"),
        _fenced(1),
        sched.WorldFormed(**AT_0, epoch=2, cells=(0, 1, 2)),
        _closed(2, 0, 1),
    )
    told.held[1] = Holdings(engine_version=(1, 0), trainer_version=(1, 0), world_epoch=2)
    assert isinstance(told.duty(1), orders.JoinBatch)
    told.held[1].accumulating = BATCH
    assert isinstance(told.duty(1), orders.TrainMicroStep)
    told.held[1].trained = {0}
    assert isinstance(told.duty(1), orders.FinishBatch)


def test_a_member_that_has_been_through_the_reduction_waits_for_the_core() -> None:
    told = _accumulating(_in_training(), 0, 1)
    told.tell(_closed(1, 0, 1))
    told.held[1].accumulating = None
    told.held[1].finished = (BATCH, 1)
    assert told.duty(1) is None


def test_a_satellite_goes_back_with_the_bursts_weights_though_the_core_is_steps_ahead() -> None:
    """It was slow; were it to wait for the next checkpoint, rollout might miss it for good."""
    told = _in_training()
    told.tell(
        step_completed(1),
        burst_ended(core_stays=True),
    )
    assert told.duty(1) is None
    told.tell(
        saved(1),
        published(1),
        sched.BurstStarted(**AT_0, burst=1, first_step=1, num_steps=2),
        batch_opened(1),
        step_completed(2),
    )
    duty = told.duty(1)
    assert isinstance(duty, orders.ReturnToRollout)
    assert duty.version == (1, 1)


@pytest.mark.parametrize("cell", [0, 1])
def test_nobody_connects_to_a_world_that_one_of_its_trainers_has_died_in(cell: int) -> None:
    told = ToldJob().booted()
    assert isinstance(told.duty(cell), orders.AwaitWorld)
    for each in range(3):
        told.tell(cell_events.WorldReady(cell=each, epoch=1))
    assert isinstance(told.duty(cell), orders.FormWorld)
    told.tell(cell_events.TrainerLost(cell=1, error="e"))
    assert told.duty(cell) is None
    told.tell(cell_events.TrainerReady(cell=1, pid=2))
    assert told.duty(cell) is None
    told.tell(sched.WorldFormed(**AT_0, epoch=2, cells=(0, 1, 2)))
    assert isinstance(told.duty(cell), orders.AwaitWorld)


def test_weights_of_a_dead_core_are_not_pulled() -> None:
    told = _accumulating(_in_training(), 0)
    told.held[1].trainer_version = (0, 0)
    joining = told.duty(1)
    assert isinstance(joining, orders.JoinBatch)
    assert joining.pull is not None
    told.tell(cell_events.TrainerLost(cell=0, error="e"))
    assert told.cells[1].exposure is None
    assert told.duty(1) is None


def test_a_broken_world_is_said_once() -> None:
    told = _accumulating(_in_training(), 0)
    told.held[0].broken_epoch, told.held[0].world_epoch = 1, 0
    told.held[0].accumulating = None
    assert told.duty(0) == orders.ReportBroken(epoch=1, explained=False)
    told.tell(cell_events.TrainerLost(cell=1, error="e"))
    assert told.duty(0) == orders.ReportBroken(epoch=1, explained=True)
    told.tell(cell_events.WorldBroken(cell=0, epoch=1, error="e"))
    assert told.duty(0) is None
    fence = told.decision()
    assert isinstance(fence, sched.EpochFenced)
    assert fence.lost == ()
    told.tell(fence)
    assert isinstance(told.decision(), sched.WorldFormed)


def test_a_finished_job_is_stopped_once_and_nothing_else_is_done_for_it() -> None:
    told = _in_training()
    told.tell(sched.JobFinished(**AT_0, status="cancelled", reason="r"))
    assert isinstance(told.duty(0), orders.StopJob)
    told.held[0] = Holdings()
    told.tell(role_changed(0, "offline"))
    assert told.duty(0) is None
    assert told.state.cells[0].role == "offline"


def test_an_execution_that_ended_before_its_move_holds_no_slot() -> None:
    told = ToldJob()
    plan = sched.GroupPlan(group="g", task="t", executions=("e",))
    order = sched.StartOrder(execution="e", group="g", task="t", cell=0, seed=0)
    told.tell(
        sched.Dispatched(**AT_0, kind="training", groups=(plan,), version=0, lineage=1),
        sched.StartOrdered(**AT_0, orders=(order,)),
        sched.ExecutionsCancelled(**AT_0, queued=(), running=("e",), reason="r"),
    )
    told.tell(terminated("e", "cancelled"))
    move = sched.Move(execution="e", source=0, destination=2)
    told.tell(to_training(0).model_copy(update={"moves": (move,)}))
    assert not any(cell.executions for cell in told.state.cells.values())


def test_a_restored_core_holds_the_checkpoint_under_the_new_lineage() -> None:
    told = _in_training()
    told.tell(
        step_completed(1),
        saved(1),
        published(1),
        batch_opened(1),
        step_completed(2),
        cell_events.TrainerLost(cell=0, error="e"),
    )
    told.held[0] = Holdings(engine_version=(1, 0))
    assert told.duty(0) == orders.StartTrainer(path="/c1", version=(1, 1))
    told.held[0].trainer_version = (1, 1)
    told.tell(cell_events.TrainerReady(cell=0, pid=2))
    restored = told.decision()
    assert isinstance(restored, sched.Restored)
    assert (restored.lineage, restored.version, restored.checkpoint) == (2, 1, "/c1")
    told.tell(restored)
    assert told.duty(0) == orders.RestoreCore(path="/c1", version=(2, 1))
    told.tell(role_changed(1, "rollout"))
    loading = told.duty(1)
    assert isinstance(loading, orders.LoadWeights)
    assert loading.checkpoint.version == (2, 1)


def test_an_engine_enters_rollout_with_the_newest_durable_weights() -> None:
    told = ToldJob()
    told.tell(
        cell_events.TrainerReady(cell=1, pid=1),
        saved(3),
    )
    assert isinstance(told.duty(1), orders.LoadWeights)
    told.held[1].engine_version = (1, 3)
    assert told.duty(1) == orders.ReportRollout(version=(1, 3))


def test_a_trainer_that_dies_again_and_again_without_a_step_ends_the_job() -> None:
    told = _in_training()
    for _ in range(8):
        told.tell(
            cell_events.TrainerLost(cell=1, error="boom"), cell_events.TrainerReady(cell=1, pid=1)
        )
    ended = told.decision()
    assert isinstance(ended, sched.JobFinished)
    assert ended.status == "failed"
    assert ended.reason == "cell 1: trainer lost 8 times without a step between: boom"
