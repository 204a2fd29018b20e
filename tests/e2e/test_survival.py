"""kill -9 at named points of every service, a satellite's trainer and the core's, in jobs on a real
stack: they finish, and the counts agree with the log."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.journal import Fact
from gyre.cli.client import ApiClient
from gyre.cli.errors import CommandError
from gyre.contracts.http import JobView
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.embedded import control
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs, read_run
from gyre.testkit.small_job import write_small_job

SERVICES = {
    "scheduler.after_append": 12,
    "scheduler.after_batch_opened": 2,
    "proxy.after_append": 9,
    "proxy.mid_stream": 40,
    "trajectory.after_claim": 3,
    "trajectory.after_append": 9,
    "trainer_1.mid_accumulation": 1,
}
EXECUTIONS_AND_CORE = {
    "runner.after_started": 5,
    "runner.after_launch": 30,
    "evaluator.after_score": 7,
    "trainer_0.mid_accumulation": 3,
    "cell_agent.after_claim": 9,
}
# A larger model than other tests use: training must last until satellites have joined.
MODEL = {"hidden_size": 320, "num_layers": 6, "intermediate_size": 1280, "num_heads": 8}
STEPS, GROUPS = 6, 6


@pytest.mark.timeout(420)
@pytest.mark.parametrize("failpoints", [SERVICES, EXECUTIONS_AND_CORE], ids=["services", "core"])
def test_a_job_survives_kills_at_every_named_point_and_its_counts_agree(
    tmp_path: Path, failpoints: dict[str, int]
) -> None:
    home = tmp_path / "state with a space"
    environ = dict(os.environ) | {
        "GYRE_FAILPOINT": ",".join(f"{name}:{count}" for name, count in failpoints.items())
    }
    info = control.up(home, cells=3, environ=environ, owner=os.getpid())
    try:
        job = write_small_job(
            tmp_path / "job", model=MODEL, num_steps=STEPS, groups_per_step=GROUPS
        )
        # Small micro-steps: whoever joins late still finds one to claim.
        job["admission"] = {"row_tokens": 512, "tokens_per_micro_step": 512}
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            view = _wait(client, client.submit(job).id, deadline_s=300)
        assert (view.status, view.reason) == ("succeeded", "all steps done")
        facts, calls = asyncio.run(read_run(info.urls["nats"], view.id))
    finally:
        control.down(home, purge=False)
    died = {path.name.removeprefix("failpoint.") for path in (home / "run").glob("failpoint.*")}
    assert set(failpoints) == died
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=DirectoryBlobStore(home / "blobs"))
    assert view.num_terminated == len(log.terminated)
    assert log.failed_calls == 0
    _replays(view, facts)


def _wait(client: ApiClient, job: str, deadline_s: float) -> JobView:
    deadline = time.monotonic() + deadline_s
    while True:
        view = _fetch(client, job, deadline)
        if view.status in ("succeeded", "failed", "cancelled"):
            return view
        assert time.monotonic() < deadline, f"not finished: {view}"
        time.sleep(0.5)


def _fetch(client: ApiClient, job: str, deadline: float) -> JobView:
    """The scheduler is killed on purpose: ask again until it is back."""
    while True:
        try:
            return client.job(job)
        except CommandError:
            assert time.monotonic() < deadline, "the scheduler did not come back"
            time.sleep(0.2)


def _replays(view: JobView, facts: list[Fact]) -> None:
    """Folding the log gives what the living scheduler last said of the job."""
    state = JobState(job=view.id)
    for fact in facts:
        evolve(state, fact.sequence, fact.body)
    assert (state.status, state.version) == (view.status, view.version)
    assert state.training.terminated == view.num_terminated
    assert next_decision(state, facts[-1].envelope.time) is None
    assert first_decision_that_differs(facts) is None
