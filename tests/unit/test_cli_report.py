"""The report of a recorded run: figures that add up, files that can be read."""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from gyre.cli.report_files import SECTIONS, emulation_in_words, summary_table, write_report
from gyre.cli.tables import MAX_ROWS
from gyre.contracts.codec import make_envelope
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.contracts.job import CellsSection
from gyre.core.report import RunReport, emulation
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec
from gyre.testkit.training_world import JOB, Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

HELDOUT = ("h0", "h1", "h2")
STEPS = 4


@cache
def _recorded() -> TrainingWorld:
    """A run with a held-out set, satellites that train, and a core that is lost once."""
    with tempfile.TemporaryDirectory() as home:
        world = TrainingWorld(
            spec=job_spec(
                capacity=4,
                executions_per_group=2,
                groups_per_step=3,
                phi=1 / 3,
                num_steps=STEPS,
                tau_s=0.0,
            ),
            home=Path(home),
            seed=3,
            strikes=(Strike(after="stream_closed", nth=2, delay_s=0.0, victim="trainer", cell=0),),
            micro_step_s=4.0,
            execution_s=1.0,
            heldout_tasks=HELDOUT,
        )
        run_virtual(world.run())
    return world


def _report() -> RunReport:
    report = RunReport(JOB)
    for fact in _recorded().log:
        if fact.job == JOB:
            report.fold_fact(fact.sequence, fact.envelope)
    return report


def _call(**changes: object) -> call_events.CallRecorded:
    values = {
        "call": "c",
        "execution": f"{JOB}-g0000-e0",
        "attempt": 1,
        "request_role": "main",
        "parent": None,
        "segments": (),
        "node": "n",
        "output_ids": (1, 2, 3),
        "output_logprobs": (-0.1, -0.2, -0.3),
        "spans": (),
        "num_input_tokens": 1,
        "num_cached_tokens": 0,
        "temperature": 1.0,
        "max_new_tokens": 8,
        "finish_reason": "stop",
        "outcome": "committed",
        "duration_s": 0.1,
    }
    return call_events.CallRecorded.model_validate(values | changes)


def _fold_call(
    report: RunReport, body: call_events.CallRecorded | call_events.CallRerouted
) -> None:
    report.fold_call(
        make_envelope(body, identity="i", job=JOB, aggregate="calls.x", time=0.0, causation="")
    )


def test_the_summary_counts_what_the_log_holds() -> None:
    world, summary = _recorded(), _report().summary()
    bodies = [fact.body for fact in world.log]
    completed = [body for body in bodies if isinstance(body, step_events.StepCompleted)]
    restored = [body for body in bodies if isinstance(body, sched.Restored)]
    assert len(restored) == 1
    assert len(completed) > STEPS
    assert summary["status"] == "succeeded"
    assert summary["steps"] == STEPS == len(summary["reward_by_step"])
    assert summary["executions"] == STEPS * 3 * 2 + 2 * len(HELDOUT)
    assert summary["heldout_tasks"] == len(HELDOUT)
    assert (summary["reward_before"], summary["reward_after"]) == (1.0, 1.0)
    assert summary["role_changes"] == sum(isinstance(b, cell_events.RoleChanged) for b in bodies)
    assert summary["cells_that_trained"][0] == 0
    assert len(summary["cells_that_trained"]) > 1
    assert summary["wall_s"] == pytest.approx(
        world.log[-1].envelope.time - world.log[3].envelope.time, abs=10.0
    )
    assert summary["mean_staleness"] is not None


def test_calls_are_counted_by_outcome_and_heldout_tokens_are_not_sampled_for_training() -> None:
    report = _report()
    _fold_call(report, _call())
    _fold_call(report, _call(execution=f"{JOB}-hb0000-e0"))
    _fold_call(report, _call(outcome="aborted"))
    _fold_call(report, _call(outcome="failed", num_malformed_tool_calls=2))
    for _ in range(2):
        moved = call_events.CallRerouted(
            call="c", execution="e", source=0, destination=1, tokens_kept=1, reason="transition"
        )
        _fold_call(report, moved)
    summary = report.summary()
    assert summary["calls"] == 4
    assert summary["calls_failed"] == 1
    assert summary["calls_rerouted"] == 1
    assert summary["malformed_tool_calls"] == 2
    assert summary["sampled_tokens"] == 3
    assert summary["failures"]["call aborted"] == 1


def test_a_step_that_was_not_applied_is_among_the_alarms_and_trained_nothing() -> None:
    report = RunReport(JOB)
    for fact in _recorded().log:
        envelope = fact.envelope
        if isinstance(fact.body, step_events.StepCompleted) and fact.body.version == 1:
            refused = fact.body.model_copy(update={"skipped": True, "skip_reason": "mismatch: x"})
            envelope = replace(envelope, body=refused)
        if fact.job == JOB:
            report.fold_fact(fact.sequence, envelope)
    summary = report.summary()
    assert summary["alarms"] == ["step 0 was not applied: mismatch: x"]
    assert summary["steps_skipped"] == 1
    assert summary["trained_tokens"] == _report().summary()["trained_tokens"] * (STEPS - 1) / STEPS


def test_both_files_are_written_and_can_be_read(tmp_path: Path) -> None:
    report = _report()
    summary = write_report(report, tmp_path / "out" / "run")
    text = (tmp_path / "out" / "run" / "report.json").read_text(encoding="utf-8")

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    read = json.loads(text, parse_constant=refuse)
    assert read == json.loads(json.dumps(summary))
    page = _Page()
    page.feed((tmp_path / "out" / "run" / "report.html").read_text(encoding="utf-8"))
    page.close()
    assert page.counts["svg"] == 5
    assert page.counts["h2"] == 10
    switches = 1 + min(len(summary["switches"]["each"]), MAX_ROWS) + 2
    switches += 1 + len(summary["switches"]["phases"])
    delivery, objective = 1 + STEPS + 1, 1 + STEPS
    figures = len(summary.keys() - {"switches", *SECTIONS})
    assert page.counts["tr"] == figures + delivery + objective + switches
    assert page.open == []


def test_the_table_shows_both_scores_with_their_errors() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary_table(_report()))
    shown = console.export_text()
    assert shown.count("1.000 ± 0.000 (3 tasks)") == 2
    assert "succeeded" in shown


@pytest.mark.parametrize("num", [1, 2, 5, 40])
def test_a_run_that_has_only_begun_has_a_report_too(tmp_path: Path, num: int) -> None:
    report = RunReport(JOB)
    facts = [fact for fact in _recorded().log if fact.job == JOB]
    for fact in facts[:num]:
        report.fold_fact(fact.sequence, fact.envelope)
    summary = write_report(report, tmp_path)
    assert summary["steps"] == 0
    assert summary["reward_after"] is None
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_log_of_the_plain_scheduling_world_gives_a_report() -> None:
    world = World(job_spec(num_steps=3), lambda number: 1.0 + number % 3)
    world.run()
    report = RunReport("job")
    for sequence, time, body in world.log:
        envelope = make_envelope(
            body, identity=str(sequence), job="job", aggregate="facts.x", time=time, causation=""
        )
        report.fold_fact(sequence, envelope)
    summary = report.summary()
    assert summary["steps"] == 3
    assert summary["reward_before"] is None
    assert len(report.staleness_by_group()) == 18
    levels = [capacity for _, _, capacity in report.waterlevel]
    assert max(levels) == 24
    assert min(level for _, level, _ in report.waterlevel) == 0


class _Page(HTMLParser):
    """Counts elements and keeps the ones not closed."""

    _VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("emulate", "words"),
    [
        ((), None),
        (({"decode_tokens_per_s": 20.0},), "decode 20 tokens/s"),
        (
            ({"decode_tokens_per_s": 20.0, "training_tokens_per_s": 900.0}, {}, {}),
            "decode 20 machine machine, training 900 machine machine tokens/s",
        ),
    ],
)
def test_emulated_speeds_are_named_in_every_report(
    emulate: tuple[dict[str, float], ...], words: str | None
) -> None:
    cells = CellsSection(count=3, capacity=4, emulate=emulate)  # type: ignore[arg-type]
    speeds = emulation(cells)

    assert bool(speeds) == bool(words)
    if words is not None:
        assert emulation_in_words(speeds) == words
