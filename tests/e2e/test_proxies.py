"""A job on a real stack with two proxies, of which each is killed once and the second not started
again: its executions go on at the other, and the log adds up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.cli.client import ApiClient
from gyre.contracts.events.executions import AttemptStarted, Terminated
from gyre.contracts.http import JobView
from gyre.embedded import control
from gyre.testkit.log_audit import RunLog, audit, read_run
from gyre.testkit.small_job import write_small_job

STEPS, GROUPS = 3, 4


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_executions_outlive_the_proxies_that_they_belong_to(tmp_path: Path) -> None:
    home = tmp_path / "state"
    environ = dict(os.environ) | {"GYRE_PROXIES": "2"}
    info = control.up(home, cells=2, environ=environ, owner=os.getpid())
    try:
        job = write_small_job(
            tmp_path / "job", num_turns=4, num_steps=STEPS, groups_per_step=GROUPS
        )
        job["cells"]["count"] = 2
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            name = client.submit(job).id
            _until(client, name, lambda view: view.num_terminated >= 3)
            control.stop_process(home, "proxy-1", sig=signal.SIGKILL)
            _until(client, name, lambda view: view.num_terminated >= 9)
            control.start_process(home, "proxy-1")
            _until(client, name, lambda view: view.num_terminated >= 15)
            control.stop_process(home, "proxy", sig=signal.SIGKILL)
            view = _until(client, name, lambda view: view.status != "running")
        blobs = DirectoryBlobStore(home / "blobs")
        facts, calls = asyncio.run(read_run(info.urls["nats"], name, blobs))
    finally:
        control.down(home, purge=False)
    assert (view.status, view.reason) == ("succeeded", "all steps done")
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=blobs)
    assert log.failed_calls == 0
    ends = [fact.body for fact in facts if isinstance(fact.body, Terminated)]
    assert {end.reason for end in ends} == {"completed"}
    starts = [fact.body for fact in facts if isinstance(fact.body, AttemptStarted)]
    chosen = Counter(start.proxy for start in starts)
    assert set(chosen) == {info.urls["proxy"], info.urls["proxy-1"]}
    assert len(starts) == len(ends)  # no attempt was lost
    used = {
        start.execution: (home / "workspaces" / start.workspace).with_name("proxy").read_text()
        for start in starts
    }
    assert any(used[start.execution] != start.proxy for start in starts)


def _until(client: ApiClient, job: str, condition: Callable[[JobView], bool]) -> JobView:
    """The job, once the condition holds of it or it does not run any more."""
    deadline = time.monotonic() + 300
    while True:
        view = client.job(job)
        if condition(view) or view.status in ("succeeded", "failed", "cancelled"):
            return view
        assert time.monotonic() < deadline, f"not reached: {view}"
        time.sleep(0.1)
