"""Cells that leave a running job on a real stack: one whose agent dies for good, one that is asked
back; the job ends, and its log adds up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.cli.client import ApiClient
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.http import ClusterCellView, JobView
from gyre.embedded import control
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs, read_run
from gyre.testkit.small_job import write_small_job

DEADLINES = {"silence_deadline_s": 6.0, "transition_deadline_s": 30.0, "boot_deadline_s": 60.0}
STEPS, GROUPS = 4, 4


@pytest.mark.timeout(420)
def test_a_job_goes_on_without_a_cell_that_died_and_without_one_that_was_asked_back(
    tmp_path: Path,
) -> None:
    home = tmp_path / "state"
    info = control.up(home, cells=4, owner=os.getpid())
    try:
        job = write_small_job(tmp_path / "job", num_steps=STEPS, groups_per_step=GROUPS)
        job["cells"]["count"] = 4
        job["schedule"] |= DEADLINES
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            name = client.submit(job).id
            _until(client, name, lambda view: view.num_steps_done >= 1)
            control.stop_process(home, "cell-3", sig=signal.SIGKILL)
            client.release(name, 2)
            view = _until(client, name, lambda view: view.status != "running")
            cells = _cells_when(client, lambda cells: not cells[3].heard)
        facts, calls = asyncio.run(read_run(info.urls["nats"], name))
    finally:
        control.down(home, purge=False)
    assert (view.status, view.reason) == ("succeeded", "all steps done")
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellLost)] == [3]
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellReleased)] == [2]
    assert (cells[2].job, cells[2].role) == (None, "free")
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=DirectoryBlobStore(home / "blobs"))
    assert log.failed_calls == 0
    assert first_decision_that_differs(facts) is None


@pytest.mark.timeout(420)
def test_a_job_goes_on_when_its_core_dies_for_good_and_a_spare_cell_joins_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / "state"
    info = control.up(home, cells=3, owner=os.getpid())
    try:
        job = write_small_job(tmp_path / "job", num_steps=STEPS, groups_per_step=GROUPS)
        job["cells"]["count"] = 2
        job["schedule"] |= DEADLINES
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            name = client.submit(job).id
            view = _until(client, name, lambda view: view.num_steps_done >= 1)
            core = view.cells[0].cell
            control.stop_process(home, f"cell-{core}", sig=signal.SIGKILL)
            view = _until(client, name, lambda view: view.status != "running")
        facts, calls = asyncio.run(read_run(info.urls["nats"], name))
    finally:
        control.down(home, purge=False)
    assert (view.status, view.reason) == ("succeeded", "all steps done")
    assert view.lineage == 2
    (started,) = [fact.body for fact in facts if isinstance(fact.body, sched.JobStarted)]
    (spare,) = {0, 1, 2} - set(started.cells)
    assert [fact.body.cell for fact in facts if isinstance(fact.body, sched.CellJoined)] == [spare]
    roles = [fact.body for fact in facts if isinstance(fact.body, cell_events.RoleChanged)]
    assert any(body.cell == spare and body.role == "rollout" for body in roles)
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=DirectoryBlobStore(home / "blobs"))
    assert first_decision_that_differs(facts) is None


def _until(client: ApiClient, job: str, done: Callable[[JobView], bool]) -> JobView:
    deadline = time.monotonic() + 200
    while True:
        view = client.job(job)
        if done(view):
            return view
        assert time.monotonic() < deadline, f"not there yet: {view}"
        time.sleep(0.2)


def _cells_when(
    client: ApiClient, holds: Callable[[dict[int, ClusterCellView]], bool]
) -> dict[int, ClusterCellView]:
    """The cells as soon as it holds; a job may be over before an agent counts as silent."""
    deadline = time.monotonic() + 60
    while True:
        cells = {cell.cell: cell for cell in client.cells()}
        if holds(cells):
            return cells
        assert time.monotonic() < deadline, f"not there yet: {cells}"
        time.sleep(0.2)
