"""The report's part on delivery: what was chosen, what was trained, what sharing saved, and who is
in quarantine."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gyre.cli.report_delivery import delivery_html, delivery_table, quarantine_table
from gyre.cli.tables import MAX_ROWS
from gyre.contracts.events.groups import ExecutionQuarantined, StreamClosed
from gyre.contracts.events.steps import NO_STATISTICS, StepCompleted
from gyre.core.delivery import Deliveries

NOTHING_SAID = {"num_path_tokens": 0, "num_computed_tokens": 0, "num_forwarded_tokens": 0}
SAID = {"num_path_tokens": 900, "num_computed_tokens": 600, "num_forwarded_tokens": 650}


def closed(number: int, *, chosen: int = 100, too_long: int = 0) -> StreamClosed:
    return StreamClosed(
        batch=f"b{number}",
        groups=(),
        num_micro_steps=1,
        num_targets=chosen,
        num_admitted_targets=chosen,
        num_paths_too_long=too_long,
    )


def completed(
    number: int, *, trained: int = 100, skipped: bool = False, said: dict[str, int] | None = None
) -> StepCompleted:
    counts = {"num_targets": trained, **(SAID if said is None else said)}
    return StepCompleted(
        batch=f"b{number}",
        step=number,
        version=number + 1,
        lineage=1,
        epoch=1,
        members=(0,),
        micro_steps=(),
        statistics=NO_STATISTICS.model_copy(update=counts),
        skipped=skipped,
    )


def after(*steps: tuple[StreamClosed, StepCompleted]) -> Deliveries:
    deliveries = Deliveries()
    for stream, step in steps:
        deliveries.fold(stream)
        deliveries.complete(step)
    return deliveries


def shown(table: object) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_a_step_that_trained_all_that_was_chosen_is_delivered_whole() -> None:
    deliveries = after((closed(0), completed(0)), (closed(1, too_long=2), completed(1)))
    summary = deliveries.summary()
    assert summary["delivered_share"] == 1.0
    assert (summary["tokens_forwarded"], summary["tokens_saved"]) == (1300, 600)
    assert [step["tokens_saved"] for step in summary["delivery_by_step"]] == [300, 300]
    assert [step["paths_too_long"] for step in summary["delivery_by_step"]] == [0, 2]
    assert deliveries.alarms() == ()
    text = shown(delivery_table(deliveries))
    assert "100 (100.00%)" in text
    assert "300 (33.3%)" in text
    assert "200 (100.00%)" in text


def test_targets_that_are_lost_on_the_way_alarm_with_their_step() -> None:
    deliveries = after((closed(0), completed(0)), (closed(1), completed(1, trained=97)))
    assert deliveries.alarms() == (
        "step 1: 97 of the 100 targets that admission chose were trained (97.00%, must be 100 %)",
    )
    assert deliveries.summary()["delivered_share"] == 197 / 200


@pytest.mark.parametrize("counted", [40, 100])
def test_a_step_that_was_not_applied_delivers_nothing_and_is_in_no_sum(counted: int) -> None:
    """Refused for its mismatch it counted all targets, not finite only some: neither is trained."""
    refused = completed(1, trained=counted, skipped=True)
    deliveries = after((closed(0), completed(0)), (closed(1), refused))
    assert deliveries.alarms() == ()
    summary = deliveries.summary()
    assert summary["delivered_share"] == 1.0
    assert (summary["tokens_forwarded"], summary["tokens_saved"]) == (650, 300)
    told = [(step["applied"], step["delivered_share"]) for step in summary["delivery_by_step"]]
    assert told == [(True, 1.0), (False, None)]
    lines = shown(delivery_table(deliveries)).splitlines()
    assert [line.split()[:4] for line in lines if "not applied" in line] == [
        ["1", "100", "not", "applied"]
    ]
    assert any(line.split()[:3] == ["all", "100", "100"] for line in lines)


def test_a_run_whose_steps_were_all_refused_is_told_without_a_sum() -> None:
    deliveries = after((closed(0), completed(0, skipped=True)))
    assert deliveries.summary()["delivered_share"] is None
    assert "not applied" in delivery_html(deliveries)
    lines = shown(delivery_table(deliveries)).splitlines()
    assert not any(line.startswith("all") for line in lines)


def test_what_came_after_a_restored_checkpoint_does_not_count() -> None:
    deliveries = after((closed(0), completed(0)), (closed(1), completed(1, trained=1)))
    deliveries.restore(1)
    assert deliveries.alarms() == ()
    assert [step.step for step in deliveries.steps] == [0]


def test_a_batch_without_targets_is_delivered() -> None:
    deliveries = after((closed(0, chosen=0), completed(0, trained=0, said=NOTHING_SAID)))
    assert deliveries.summary()["delivered_share"] == 1.0
    assert deliveries.alarms() == ()


def test_a_log_that_does_not_say_its_tokens_has_none() -> None:
    deliveries = after((closed(0), completed(0, said=NOTHING_SAID)))
    summary = deliveries.summary()
    assert (summary["tokens_forwarded"], summary["tokens_saved"]) == (None, None)
    assert " - " in shown(delivery_table(deliveries))


def test_a_step_of_long_ago_is_shown_when_it_was_short() -> None:
    pairs = [(closed(n), completed(n, trained=99 if n == 3 else 100)) for n in range(2 * MAX_ROWS)]
    deliveries = after(*pairs)
    lines = shown(delivery_table(deliveries)).splitlines()
    steps = [line.split()[0] for line in lines if "%" in line]
    assert steps == ["3", *map(str, range(MAX_ROWS, 2 * MAX_ROWS)), "all"]


def test_who_is_in_quarantine_is_told_with_the_reason() -> None:
    deliveries = Deliveries()
    for number in range(MAX_ROWS + 3):
        deliveries.fold(
            ExecutionQuarantined(
                group="g", execution=f"e{number}", error=f"record {number} <b> [/x]"
            )
        )
    [alarm] = deliveries.alarms()
    assert alarm == (
        f"{MAX_ROWS + 3} executions are in quarantine, their records cannot be trained; the first,"
        " e0: record 0 <b> [/x]"
    )
    assert len(deliveries.summary()["quarantined"]) == MAX_ROWS + 3
    text = shown(quarantine_table(deliveries))
    assert "record 7 <b> [/x]" in text
    assert "3 more" in text
    page = delivery_html(deliveries)
    assert "record 7 &lt;b&gt;" in page
    assert "<h2>Executions in quarantine</h2>" in page


def test_a_run_without_a_step_has_no_section() -> None:
    assert delivery_html(Deliveries()) == ""
    assert Deliveries().summary()["delivered_share"] is None
