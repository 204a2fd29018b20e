"""kill -9 at named points of every service, a satellite's trainer and the core's, in jobs on a real
stack: they finish, and the counts agree with the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.journal import Fact
from gyre.contracts.http import JobView
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.testkit.consumption_audit import audit_consumption
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs
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
    tmp_path: Path, start_stack: Callable[..., Any], failpoints: dict[str, int]
) -> None:
    points = ",".join(f"{name}:{count}" for name, count in failpoints.items())
    environ = dict(os.environ) | {"GYRE_FAILPOINT": points}
    stack = start_stack(cells=3, state="state with a space", environ=environ)
    job = write_small_job(tmp_path / "job", model=MODEL, num_steps=STEPS, groups_per_step=GROUPS)
    # Small micro-steps: whoever joins late still finds one to claim.
    job["admission"] = {"row_tokens": 512, "tokens_per_micro_step": 512}
    view = stack.ended(stack.client.submit(job).id, may_be_away=True)
    assert (view.status, view.reason) == ("succeeded", "all steps done")
    facts, calls = stack.read(view.id)

    marks = (stack.home / "run").glob("failpoint.*")
    assert {path.name.removeprefix("failpoint.") for path in marks} == set(failpoints)
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=stack.blobs)
    audit_consumption(facts, calls, stack.blobs)
    assert view.num_terminated == len(log.terminated)
    assert log.failed_calls == 0
    _replays(view, facts)


def _replays(view: JobView, facts: list[Fact]) -> None:
    """Folding the log gives what the living scheduler last said of the job."""
    state = JobState(job=view.id)
    for fact in facts:
        evolve(state, fact.sequence, fact.body)
    assert (state.status, state.version) == (view.status, view.version)
    assert state.training.terminated == view.num_terminated
    assert next_decision(state, facts[-1].envelope.time) is None
    assert first_decision_that_differs(facts) is None
