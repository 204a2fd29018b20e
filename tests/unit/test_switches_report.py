"""What role switches cost, as `gyre report` sums it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gyre.adapters.archive import read_archive
from gyre.cli.app import app
from gyre.cli.report_switches import phases_table, switches_html, switches_table
from gyre.cli.tables import MAX_ROWS
from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Envelope
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, Moved
from gyre.contracts.events.cells import RoleChanged
from gyre.contracts.events.scheduling import CellLost, Move, TransitionStarted
from gyre.core.report import RunReport
from gyre.core.switches import Switches

RECORDED = Path(__file__).parents[1] / "replay" / "runs" / "kills.jsonl.gz"
AT = {"based_on": 0, "now": 0.0}


def moves(source: int, destination: int, *executions: str) -> tuple[Move, ...]:
    return tuple(Move(execution=e, source=source, destination=destination) for e in executions)


def to_training(cell: int, *executions: str, to: int = 1) -> TransitionStarted:
    return TransitionStarted(
        **AT,
        cell=cell,
        to="training",
        moves=moves(cell, to, *executions),
        waterlevel=0,
        capacity_after=0,
    )


def in_training(cell: int) -> RoleChanged:
    return RoleChanged(
        cell=cell, role="training", version=1, lineage=1, engine_url=None, duration_s=0.5
    )


def said(body: CallRerouted | CallRecorded | CallsSealed, time: float) -> Envelope:
    return make_envelope(body, identity="i", job="j", aggregate="calls.x", time=time, causation="")


def rerouted(execution: str, time: float, **changes: Any) -> Envelope:
    values: dict[str, Any] = {
        "call": f"{execution}-c00000",
        "execution": execution,
        "source": 0,
        "destination": 1,
        "tokens_kept": 20,
        "reason": "transition",
        "tokens_migrated": 119,
        "tokens_prefilled_again": 1,
        "migration_s": 0.02,
        "num_cached_tokens": 119,
    }
    return said(CallRerouted.model_validate(values | changes), time)


def recorded(execution: str, time: float, moved: Moved | None) -> Envelope:
    call = CallRecorded.model_validate(
        {
            "call": f"{execution}-c00001",
            "execution": execution,
            "attempt": 1,
            "request_role": "main",
            "parent": None,
            "segments": (),
            "node": "n",
            "output_ids": (1,),
            "output_logprobs": (-0.1,),
            "spans": (),
            "num_input_tokens": 220,
            "num_cached_tokens": 150,
            "temperature": 1.0,
            "max_new_tokens": 8,
            "finish_reason": "stop",
            "outcome": "committed",
            "duration_s": 0.1,
            "moved": moved,
        }
    )
    return said(call, time)


def between(migrated: int, again: int, source: int = 0) -> Moved:
    return Moved(
        source=source,
        destination=1,
        tokens_at_source=200,
        tokens_migrated=migrated,
        tokens_prefilled_again=again,
        migration_s=0.01,
    )


def two_switches() -> Switches:
    """e0 ran and e1 was idle when cell 0 left at 100; e0 was idle when it left again at 200."""
    switches = Switches()
    switches.fold_fact(to_training(0, "e0", "e1"), 100.0)
    switches.fold_fact(in_training(0), 100.5)
    switches.fold_fact(to_training(0, "e0"), 200.0)
    switches.fold_call(rerouted("e0", 100.1))
    switches.fold_call(recorded("e1", 130.0, between(200, 0)))
    switches.fold_call(recorded("e0", 210.0, between(150, 50)))
    switches.fold_call(recorded("e0", 211.0, None))
    return switches


def test_each_switch_has_the_calls_that_it_moved() -> None:
    first, second = two_switches().rows
    assert (first.seconds, second.seconds) == (0.5, None)
    assert first.cost.summary() == {
        "calls_rerouted": 1,
        "calls_moved": 1,
        "tokens_kept": 20,
        "tokens_migrated": 119 + 200,
        "tokens_unused": 0,
        "tokens_prefilled_again": 1,
        "migration_s": pytest.approx(0.03),
        "cached_share": 1.0,
    }
    assert (second.cost.calls_rerouted, second.cost.calls_moved) == (0, 1)
    assert second.cost.cached_share == 0.75


def test_the_total_is_the_sum_of_the_switches() -> None:
    summary = two_switches().summary(started_at=90.0)
    assert summary["num"] == 2
    assert summary["executions_moved"] == 3
    for name in ("calls_rerouted", "calls_moved", "tokens_kept", "tokens_migrated"):
        assert summary[name] == sum(row[name] for row in summary["each"])
    assert summary["tokens_prefilled_again"] == 51
    assert summary["cached_share"] == pytest.approx((119 + 200 + 150) / (119 + 200 + 200))
    assert [row["at_s"] for row in summary["each"]] == [10.0, 110.0]
    assert summary["without_a_switch"]["calls_rerouted"] == 0


def test_what_moves_without_a_switch_is_no_switchs_cost() -> None:
    switches = Switches()
    switches.fold_fact(to_training(0, "e0"), 100.0)
    switches.fold_call(rerouted("e0", 50.0, reason="engine_lost"))
    switches.fold_call(rerouted("e0", 150.0, reason="publication"))
    switches.fold_call(rerouted("e9", 150.0))
    switches.fold_call(recorded("e9", 160.0, between(0, 200, source=2)))
    assert switches.total().calls_rerouted == 0
    assert (switches.other.calls_rerouted, switches.other.calls_moved) == (3, 1)


def test_a_lost_cell_is_a_switch_too_and_has_no_length() -> None:
    switches = Switches()
    lost = CellLost(**AT, cell=0, reason="silent", moves=moves(0, 1, "e0"))
    switches.fold_fact(lost, 100.0)
    switches.fold_call(recorded("e0", 160.0, between(0, 200)))
    [row] = switches.rows
    assert (row.to, row.seconds, row.cost.cached_share) == ("lost", None, 0.0)


def test_what_was_copied_for_a_call_that_did_not_come_is_a_cost_too() -> None:
    switches = Switches()
    switches.fold_fact(to_training(0, "e0"), 100.0)
    seal = CallsSealed(execution="e0", num_calls=1, last_seq=9, unused=(between(200, 0),))
    switches.fold_call(said(seal, 120.0))
    [row] = switches.rows
    assert (row.cost.tokens_migrated, row.cost.tokens_unused) == (200, 200)
    assert (row.cost.calls_moved, row.cost.cached_share) == (0, None)


def test_clocks_that_disagree_a_little_do_not_lose_a_call() -> None:
    switches = Switches()
    switches.fold_fact(to_training(0, "e0"), 100.0)
    switches.fold_call(rerouted("e0", 99.7))
    assert switches.rows[0].cost.calls_rerouted == 1


def phased(cell: int, role: str, seconds: float, *, failed: str = "") -> RoleChanged:
    names = ["stop_admitting", failed] if failed else ["stop_admitting", "drain"]
    return RoleChanged.model_validate(
        {
            "cell": cell,
            "role": role,
            "version": 1,
            "lineage": 1,
            "engine_url": None,
            "duration_s": seconds,
            "undone": failed,
            "phases": [
                {"name": name, "seconds": seconds, "engine_bytes": 10, "undone": name == failed}
                for name in names
            ],
        }
    )


def test_each_phase_has_its_times_over_all_changes() -> None:
    phases = Switches().phases
    for number in range(1, 101):
        phases.fold(phased(0, "training", number / 100))
    summary = {row["phase"]: row for row in phases.summary()}
    assert [*summary] == ["stop_admitting", "drain"]
    assert summary["drain"] == {
        "phase": "drain",
        "num": 100,
        "undone": 0,
        "p50_s": 0.5,
        "p99_s": 0.99,
        "max_s": 1.0,
        "engine_bytes": 10,
        "trainer_bytes": None,
    }


def test_a_switch_that_was_undone_says_so_and_its_phase_is_counted_apart() -> None:
    report = RunReport("j")
    report.started_at = 100.0
    report.switches.fold_fact(to_training(0, "e0"), 100.0)
    report.switches.fold_fact(phased(0, "rollout", 0.25, failed="release_engine"), 101.0)
    [row] = report.switches.rows
    assert (row.seconds, row.undone) == (None, "release_engine")
    assert report.switches.summary(100.0)["undone"] == 1
    assert "0 training 0.0 undone 1" in " ".join(text(report).split())
    console = Console(width=90, record=True, file=io.StringIO())
    console.print(phases_table(report))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "stop_admitting 1 0 250.0 250.0 250.0 0 -" in lines
    assert "release_engine 0 1 - - - 0 -" in lines
    assert "release_engine" in switches_html(report)


def recorded_run() -> RunReport:
    events = list(read_archive(RECORDED))
    report = RunReport(events[0][1].job)
    for stream, fact in events:
        if stream == "facts":
            report.fold_fact(fact.sequence, fact.envelope)
    for stream, fact in events:
        if stream == "calls":
            report.fold_call(fact.envelope)
    return report


def test_the_recorded_run_of_an_earlier_release_is_summed_as_far_as_it_tells() -> None:
    report = recorded_run()
    summary = report.summary()["switches"]
    said_by_calls = [
        fact.body for _, fact in read_archive(RECORDED) if isinstance(fact.body, CallRerouted)
    ]
    assert summary["num"] >= 3
    both = summary, summary["without_a_switch"]
    assert sum(part["calls_rerouted"] for part in both) == len(said_by_calls) == 6
    kept = sum(event.tokens_kept for event in said_by_calls)
    assert sum(part["tokens_kept"] for part in both) == kept
    assert summary["calls_rerouted"] > 0
    assert summary["cached_share"] is None


def text(report: RunReport) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(switches_table(report))
    return console.export_text()


def test_the_text_has_a_line_a_switch_and_their_sum() -> None:
    report = RunReport("j")
    report.switches = two_switches()
    report.started_at = 90.0
    lines = [" ".join(line.split()) for line in text(report).splitlines()]
    assert "0 training 10.0 0.50 2 1 + 1 20 319 1 0.030 100.0%" in lines
    assert "0 training 110.0 - 1 0 + 1 0 150 50 0.010 75.0%" in lines
    assert "all 2 3 1 + 2 20 469 51 0.040 90.4%" in lines


def test_of_many_switches_those_that_moved_most_are_shown() -> None:
    report = RunReport("j")
    for number in range(3 * MAX_ROWS):
        report.switches.fold_fact(to_training(0, f"e{number}"), 100.0 * number)
    report.switches.fold_call(recorded("e7", 710.0, between(150, 50)))
    shown = text(report)
    assert shown.count("0 training") == MAX_ROWS
    assert "700.0" in shown
    assert f"all {3 * MAX_ROWS}" in shown
    assert switches_html(report).count("<tr>") == 1 + MAX_ROWS + 2


def test_the_command_prints_the_section_or_the_figures_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ["report", "--file", str(RECORDED), "--out", str(tmp_path)]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    assert "Role switches: what they cost" in printed.output
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert as_json.exit_code == 0, as_json.output
    shown = json.loads(as_json.stdout)
    assert shown == json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert len(shown["switches"]["each"]) == shown["switches"]["num"]
