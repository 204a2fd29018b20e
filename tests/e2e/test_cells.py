"""Cells that leave a running job on a real stack: one whose agent dies for good, one that is asked
back; the job ends, and its log adds up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.http import ClusterCellView
from gyre.embedded import control
from gyre.testkit.consumption_audit import audit_consumption
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs
from gyre.testkit.small_job import write_small_job

DEADLINES = {"silence_deadline_s": 6.0, "transition_deadline_s": 30.0, "boot_deadline_s": 60.0}
STEPS, GROUPS = 4, 4


@pytest.mark.timeout(420)
def test_a_job_goes_on_without_a_cell_that_died_and_without_one_that_was_asked_back(
    tmp_path: Path, start_stack: Callable[..., Any]
) -> None:
    stack = start_stack(cells=4)
    name = stack.client.submit(_job(tmp_path, cells=4)).id
    stack.until(name, lambda view: view.num_steps_done >= 1)
    control.stop_process(stack.home, "cell-3", sig=signal.SIGKILL)
    stack.client.release(name, 2)
    view = stack.ended(name)
    cells = _cells_when(stack, lambda cells: not cells[3].heard)
    facts, calls = stack.read(name)

    assert (view.status, view.reason) == ("succeeded", "all steps done")
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellLost)] == [3]
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellReleased)] == [2]
    assert (cells[2].job, cells[2].role) == (None, "free")
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=stack.blobs)
    audit_consumption(facts, calls, stack.blobs)
    assert log.failed_calls == 0
    assert first_decision_that_differs(facts) is None


@pytest.mark.timeout(420)
def test_a_job_goes_on_when_its_core_dies_for_good_and_a_spare_cell_joins_it(
    tmp_path: Path, start_stack: Callable[..., Any]
) -> None:
    stack = start_stack(cells=3)
    name = stack.client.submit(_job(tmp_path, cells=2)).id
    view = stack.until(name, lambda view: view.num_steps_done >= 1)
    control.stop_process(stack.home, f"cell-{view.cells[0].cell}", sig=signal.SIGKILL)
    view = stack.ended(name)
    facts, calls = stack.read(name)

    assert (view.status, view.reason) == ("succeeded", "all steps done")
    assert view.lineage == 2
    (started,) = [fact.body for fact in facts if isinstance(fact.body, sched.JobStarted)]
    (spare,) = {0, 1, 2} - set(started.cells)
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellJoined)] == [spare]
    roles = [fact.body for fact in facts if isinstance(fact.body, cell_events.RoleChanged)]
    assert any(body.cell == spare and body.role == "rollout" for body in roles)
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=stack.blobs)
    audit_consumption(facts, calls, stack.blobs)
    assert first_decision_that_differs(facts) is None


def _job(tmp_path: Path, cells: int) -> dict[str, Any]:
    job = write_small_job(tmp_path / "job", num_steps=STEPS, groups_per_step=GROUPS)
    job["cells"]["count"] = cells
    job["schedule"] |= DEADLINES
    return job


def _cells_when(
    stack: Any, holds: Callable[[dict[int, ClusterCellView]], bool]
) -> dict[int, ClusterCellView]:
    """The cells as soon as it holds; a job may be over before an agent counts as silent."""
    deadline = time.monotonic() + 60
    while True:
        cells = {cell.cell: cell for cell in stack.client.cells()}
        if holds(cells):
            return cells
        assert time.monotonic() < deadline, f"not there yet: {cells}"
        time.sleep(0.2)
