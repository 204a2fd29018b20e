"""A run with sub-agents, a fork and a compaction, through the proxy, on a real stack: trainers have
consumed exactly the sampled tokens that admission chose, and learnt what those say."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.journal import Fact
from gyre.contracts.events.calls import CallRecorded
from gyre.contracts.events.steps import StepStatistics
from gyre.core.report import RunReport
from gyre.testkit.branching_agent import LEAVES, write_branching_job
from gyre.testkit.consumption_audit import audit_consumption, job_of
from gyre.testkit.log_audit import RunLog, audit
from gyre.testkit.plain_step import plain_step

# The cap leaves one of an execution's two sub-agents out: the classes before them go in whole.
N, B, CAP = 4, 2, sum(LEAVES.values()) - 1


@pytest.mark.timeout(240)
def test_what_trainers_consumed_is_what_admission_chose_token_by_token(
    tmp_path: Path, start_stack: Callable[..., Any]
) -> None:
    job, environment = write_branching_job(
        tmp_path / "job",
        executions_per_group=N,
        groups_per_step=B,
        phi=0,
        mu=1,
        num_steps=1,
        rho_min=1.0,
    )
    job["cells"]["count"] = 2
    job["admission"] |= {"max_trajectories": CAP, "tokens_per_micro_step": 2048}
    stack = start_stack(cells=2, environ=os.environ | environment)
    view = stack.ended(stack.client.submit(job).id)
    facts, calls = stack.read(view.id)

    assert (view.status, view.version) == ("succeeded", 1), view
    audit(RunLog.of(facts, calls), num_steps=1, groups_per_step=B, blobs=stack.blobs)
    assert_branched([f.body for f in calls if isinstance(f.body, CallRecorded)])
    [batch] = audit_consumption(facts, calls, stack.blobs)
    admitted = LEAVES | {"sub-agent": 1}
    assert batch.roles == Counter({role: num * N * B for role, num in admitted.items()})
    assert all(one.expected.num_left_out > 0 for one in batch.trainees)
    assert len(batch.micro_steps) > 1
    statistics = batch.step.statistics
    assert_reported(facts, statistics)
    plain = plain_step(batch, job_of(facts), Path(job["model"]["path"]))
    assert statistics.loss == pytest.approx(plain.loss, abs=1e-5)
    assert statistics.grad_norm == pytest.approx(plain.grad_norm, rel=1e-3)
    assert plain.grad_norm > 0


def assert_reported(facts: list[Fact], statistics: StepStatistics) -> None:
    report = RunReport(facts[0].job)
    for fact in facts:
        report.fold_fact(fact.sequence, fact.envelope)
    summary = report.summary()
    assert summary["delivered_share"] == 1.0
    assert summary["tokens_forwarded"] == statistics.num_forwarded_tokens > 0
    saved = statistics.num_path_tokens - statistics.num_computed_tokens
    assert summary["tokens_saved"] == saved > 0
    assert summary["quarantined"] == []
    assert not [line for line in summary["alarms"] if "targets" in line]


def assert_branched(calls: list[CallRecorded]) -> None:
    """Each execution: a root for the agent, the two others, the title and the compaction's end."""
    by_execution: dict[str, list[CallRecorded]] = {}
    for call in calls:
        by_execution.setdefault(call.execution, []).append(call)
    assert len(by_execution) == N * B
    for own in by_execution.values():
        assert Counter(call.request_role for call in own) == {
            "main": 5,
            "sub-agent": 4,
            "main-summary": 1,
            "other": 1,
        }
        assert Counter(call.fork_reason for call in own if call.fork_reason) == {
            "delegation": 2,
            "branch": 1,
            "compaction": 1,
            "other_role": 1,
        }
