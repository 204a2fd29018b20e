"""The report's part on the objective: what adds up over steps, what is shown, what is written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gyre.adapters.blobs import MemoryBlobStore
from gyre.cli.report_objective import (
    mismatch_in_words,
    objective_html,
    objective_table,
    write_executions,
)
from gyre.cli.tables import MAX_ROWS
from gyre.contracts.events.steps import NO_STATISTICS, RATIO_EDGES, StepCompleted, VersionMismatch
from gyre.contracts.step_record import ExecutionRecord, StepRecord
from gyre.core.objective_report import MAX_NAMED, ObjectiveReport


def mismatch(version: int | None, num_targets: int, mean_abs: float) -> VersionMismatch:
    return VersionMismatch(
        version=version,
        num_targets=num_targets,
        mean_abs=mean_abs,
        max_abs=2 * mean_abs,
        mean_kl=mean_abs / 10,
    )


def completed(
    number: int, *found: VersionMismatch, reason: str = "", record: str | None = None
) -> StepCompleted:
    counts = tuple(int(place == number) for place in range(len(RATIO_EDGES) + 1))
    return StepCompleted(
        batch=f"b{number}",
        step=number,
        version=number,
        lineage=1,
        epoch=1,
        members=(0,),
        micro_steps=(),
        statistics=NO_STATISTICS.model_copy(
            update={"mismatches": found, "ratio_counts": counts, "clip_fraction": 0.25}
        ),
        skipped=bool(reason),
        skip_reason=reason,
        record=record,
    )


def report_of(*steps: StepCompleted) -> ObjectiveReport:
    report = ObjectiveReport()
    for step in steps:
        report.fold(step)
    return report


def printed(report: ObjectiveReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(objective_table(report))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_mismatches_of_a_version_add_up_over_steps_by_their_targets() -> None:
    report = report_of(
        completed(1, mismatch(0, 30, 0.1), mismatch(None, 5, 0.5)),
        completed(2, mismatch(0, 10, 0.5), mismatch(1, 4, 0.01)),
    )
    found = report.summary()["mismatch_by_version"]
    assert [(one["version"], one["num_targets"]) for one in found] == [(0, 40), (1, 4), (None, 5)]
    assert found[0]["mean_abs"] == pytest.approx(0.2)
    assert (found[0]["max_abs"], found[0]["mean_kl"]) == (1.0, pytest.approx(0.02))
    assert mismatch_in_words(report.mismatches()) == "v0 0.2, v1 0.01, v? 0.5"


def test_counts_of_ratios_add_up_and_older_logs_add_none() -> None:
    older = StepCompleted(**completed(3).model_dump() | {"statistics": NO_STATISTICS})
    summary = report_of(completed(1), completed(2), older).summary()
    assert [place for place, count in enumerate(summary["ratio_counts"]) if count] == [1, 2]
    assert sum(summary["token_ratio_counts"]) == 0
    assert len(summary["ratio_counts"]) == len(summary["ratio_edges"]) + 1


def test_steps_behind_a_restore_are_void() -> None:
    report = report_of(completed(1), completed(2), completed(3))
    report.restore(1)
    report.fold(completed(2, reason="mismatch: other"))
    assert [(row["step"], row["skip_reason"]) for row in report.summary()["objective_by_step"]] == [
        (1, ""),
        (2, "mismatch: other"),
    ]


def test_a_norm_that_is_not_finite_is_words_in_json() -> None:
    step = completed(1, reason="non_finite_gradient: its norm is nan")
    spoiled = step.statistics.model_copy(update={"grad_norm": float("nan")})
    summary = report_of(step.model_copy(update={"statistics": spoiled})).summary()
    assert (
        json.loads(json.dumps(summary, allow_nan=False))["objective_by_step"][0]["grad_norm"]
        == "NaN"
    )


def test_the_last_steps_and_those_not_applied_are_shown() -> None:
    steps = [completed(n, mismatch(n - 1, 9, 0.0125)) for n in range(1, MAX_ROWS + 6)]
    steps[1] = completed(2, reason="non_finite_loss: micro-step 3: <2 token losses>")
    report = report_of(*steps)
    lines = printed(report).splitlines()
    shown = [int(line.split()[0]) for line in lines if line.strip()[:1].isdigit()]
    assert shown == [2, *range(6, MAX_ROWS + 6)]
    assert any(line.endswith("non_finite_loss") for line in map(str.rstrip, lines))
    assert report.alarms() == (
        "step 2 was not applied: non_finite_loss: micro-step 3: <2 token losses>",
    )
    page = objective_html(report)
    assert "&lt;2 token losses&gt;" in page
    assert "0.998 to 1" in page
    assert objective_html(ObjectiveReport()) == ""


def test_each_step_that_was_not_applied_alarms_the_last_ones_by_name() -> None:
    assert report_of(completed(1)).alarms() == ()
    refused = [completed(n, reason=f"mismatch: {n}") for n in range(1, MAX_NAMED + 3)]
    report = report_of(*refused, completed(len(refused) + 1))
    named = [f"step {n} was not applied: mismatch: {n}" for n in range(3, MAX_NAMED + 3)]
    assert report.alarms() == ("2 steps before these were not applied either", *named)
    report.restore(2)
    assert [line.partition(" was")[0] for line in report.alarms()] == ["step 1", "step 2"]


def test_executions_are_written_one_a_line_as_far_as_their_records_are_there(
    tmp_path: Path,
) -> None:
    blobs = MemoryBlobStore()
    executions = tuple(
        ExecutionRecord(
            execution=f"e{n}",
            group="g",
            micro_step=0,
            cell=1,
            advantage=0.5,
            num_targets=3,
            ratio=ratio,
            kept=ratio is not None,
        )
        for n, ratio in enumerate([1.001, None])
    )
    record = StepRecord(batch="b1", step=1, version=1, lineage=1, executions=executions)
    digest = blobs.put(record.model_dump_json().encode())
    report = report_of(completed(1, record=digest), completed(2, record="0" * 64), completed(3))
    assert write_executions(report, blobs, tmp_path / "lines") == (1, 2)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [(one["step"], one["execution"], one["ratio"], one["kept"]) for one in lines] == [
        (1, "e0", 1.001, True),
        (1, "e1", None, False),
    ]
