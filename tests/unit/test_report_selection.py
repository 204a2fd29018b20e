"""What was started and not trained shows in the report, by its length."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gyre.cli.report_files import (
    dropped_in_words,
    selection_in_words,
    summary_table,
    zero_weight_in_words,
)
from gyre.contracts.events.groups import ExecutionOutcome, GroupClaimed, GroupReady
from gyre.core.advantage import Outcome, group_advantages
from gyre.core.report import RunReport
from gyre.core.selection import Selection
from gyre.testkit.specs import job_spec
from gyre.testkit.training_world import JOB, TrainingWorld
from gyre.testkit.virtual_time import run_virtual


def report_of(**schedule: Any) -> RunReport:
    """A run of the scheduler's loop and the cells' agents, executions of one second each."""
    wanted = {"executions_per_group": 2, "groups_per_step": 3, "num_steps": 2, "tau_s": 0.0}
    with tempfile.TemporaryDirectory() as home:
        world = TrainingWorld(
            spec=job_spec(capacity=4, phi=1 / 3, heldout=False, **wanted, **schedule),
            home=Path(home),
            seed=3,
        )
        run_virtual(world.run())
    report = RunReport(JOB)
    for fact in world.log:
        if fact.job == JOB:
            report.fold_fact(fact.sequence, fact.envelope)
    return report


def table(report: RunReport) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(summary_table(report))
    return console.export_text()


@pytest.mark.parametrize("keep", ["first_finished", "drawn"])
def test_an_oversampled_run_says_how_long_the_kept_ones_were(keep: str) -> None:
    report = report_of(executions_started=4, keep=keep)
    summary = report.summary()
    assert summary["num_surplus"] == 2 * 3 * 2
    assert summary["kept_duration_s"] == summary["started_duration_s"] == 1.0
    assert "surplus executions" in table(report)
    assert selection_in_words(summary) == "12; 1.0 s kept, 1.0 s all that started"


def test_without_oversampling_there_is_no_such_line() -> None:
    report = report_of()
    summary = report.summary()
    assert (summary["num_surplus"], summary["surplus_duration_s"]) == (0, None)
    assert summary["kept_duration_s"] == 1.0
    assert "surplus" not in table(report)


def test_dropped_groups_are_told_with_their_length() -> None:
    words = dropped_in_words(
        {"num_groups_dropped": 2, "dropped_duration_s": 31.04, "kept_duration_s": None}
    )
    assert words == "2; 31.0 s dropped, none kept"


def test_groups_of_zero_weight_are_told_with_the_reason() -> None:
    selection = Selection()
    groups = {
        "trains": (("valid", 0.0), ("valid", 1.0)),
        "equal": (("valid", 0.5), ("valid", 0.5), ("excluded", None)),
        "unscored": (("valid", 1.0), ("placeholder", 0.0)),
        "not-drawn": (("valid", 0.0), ("valid", 0.0)),
    }
    for group, outcomes in groups.items():
        weighed = group_advantages(
            [Outcome(disposition=how, reward=reward) for how, reward in outcomes], "mean"
        )
        selection.fold(
            GroupReady(
                group=group,
                task="t",
                version=0,
                lineage=1,
                outcomes=tuple(
                    ExecutionOutcome(
                        execution=f"{group}-{place}", disposition=how, reward=reward, advantage=a
                    )
                    for place, ((how, reward), a) in enumerate(
                        zip(outcomes, weighed.advantages, strict=True)
                    )
                ),
                zero_weight=weighed.zero_weight,
            )
        )
        if group != "not-drawn":
            selection.fold(GroupClaimed(group=group, batch="b"))
    summary = selection.summary()
    assert (summary["num_groups_equal"], summary["num_groups_unscored"]) == (1, 1)
    assert zero_weight_in_words(summary) == (
        "2 of 3: 1 of equal rewards, 1 with fewer than two valid rewards"
    )
