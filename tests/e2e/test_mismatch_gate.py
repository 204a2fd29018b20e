"""A bound that no pair of programs can keep: each step is refused, the job ends and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gyre.cli.app import app
from gyre.contracts.events import steps as step_events
from gyre.contracts.step_record import StepRecord
from gyre.testkit.log_audit import first_decision_that_differs
from gyre.testkit.small_job import write_small_job


@pytest.mark.timeout(420)
def test_a_job_whose_engines_never_match_its_trainer_stops_and_names_the_versions(
    tmp_path: Path, start_stack: Callable[..., Any]
) -> None:
    stack = start_stack(cells=2)
    job = write_small_job(tmp_path / "job", num_steps=4, groups_per_step=2)
    job["cells"]["count"] = 2
    job["objective"] = {"max_mismatch": 1e-12, "max_skipped_steps": 2}
    name = stack.client.submit(job).id
    view = stack.ended(name)
    facts, _ = stack.read(name)
    steps = [fact.body for fact in facts if isinstance(fact.body, step_events.StepCompleted)]

    assert view.status == "failed"
    assert view.reason.startswith("2 steps in a row were not applied: mismatch: ")
    assert [step.version for step in steps] == [1, 2]
    assert first_decision_that_differs(facts) is None
    for step in steps:
        assert step.skipped
        assert "version 0 by " in step.skip_reason
        _is_one_policy_in_two_programs(step.statistics)
        assert step.record is not None
        record = StepRecord.model_validate_json(stack.blobs.get(step.record))
        trained = [one for one in record.executions if one.num_targets]
        assert len(trained) == step.statistics.num_executions > 0
        assert [one.ratio for one in trained] == pytest.approx([1.0] * len(trained), rel=1e-5)
    _report_shows_it(stack.home, name, tmp_path / "report", steps)


def _is_one_policy_in_two_programs(statistics: step_events.StepStatistics) -> None:
    """Engine and trainer compute one policy in float32: what differs is rounding."""
    (mismatch, *_) = statistics.mismatches
    assert mismatch.version == 0
    assert 1e-12 < mismatch.mean_abs < 1e-5, mismatch
    assert sum(m.num_targets for m in statistics.mismatches) == statistics.num_targets
    assert sum(statistics.token_ratio_counts) == statistics.num_targets
    assert sum(statistics.ratio_counts) == statistics.num_executions


def _report_shows_it(
    home: Path, name: str, out: Path, steps: list[step_events.StepCompleted]
) -> None:
    printed = CliRunner().invoke(app, ["report", name, "--home", str(home), "--out", str(out)])
    assert printed.exit_code == 0, printed.output
    assert "steps not applied" in printed.stdout
    summary = json.loads((out / "report.json").read_text())
    assert summary["steps_skipped"] == 2
    assert (summary["delivered_share"], summary["trained_tokens"]) == (None, 0)
    named = [f"step {step.step} was not applied: {step.skip_reason}" for step in steps]
    assert summary["alarms"][:2] == named
    assert all(f"warning: {line}" in printed.stdout for line in named)
    assert [row["skip_reason"] for row in summary["objective_by_step"]] == [
        step.skip_reason for step in steps
    ]
    lines = [json.loads(line) for line in (out / "executions.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    sampled = sum(line["num_targets"] > 0 for line in lines)
    assert sampled == sum(step.statistics.num_executions for step in steps)
    assert "mismatch: trainer and engines differ" in (out / "report.html").read_text()
