"""Forks of a run, counted, and the alarms; `gyre forks` on files."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gyre.adapters.archive import Hider, read_archive, write_archive
from gyre.adapters.journal import Fact
from gyre.cli import app
from gyre.contracts.events.calls import CallRecorded, CallsSealed, RequestRole, Segment
from gyre.core.forks import (
    NO_TOOL_CALLS_ALARM,
    UNEXPLAINED_ALARM,
    UNEXPLAINED_MIN_CALLS,
    Forks,
)
from gyre.core.matching.echoes import head_keys, tools_key
from gyre.core.matching.reasons import EXPLAINED
from gyre.core.report import RunReport
from gyre.testkit.command_line import Ended, one_line, run_command

RUNS = Path(__file__).parents[1] / "replay" / "runs"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "run"}}]


def call(
    execution: str = "e",
    reason: str | None = None,
    role: RequestRole = "main",
    *,
    num_tool_calls: int = 1,
    segments: tuple[Segment, ...] = (),
) -> CallRecorded:
    return CallRecorded(
        call=f"{execution}-c0", execution=execution, attempt=1, request_role=role, parent=None,
        segments=segments, node="n", output_ids=(), output_logprobs=(), spans=(),
        num_input_tokens=1, num_cached_tokens=0, temperature=1.0, max_new_tokens=1,
        finish_reason="stop", outcome="committed", fork_reason=reason,
        num_tool_calls=num_tool_calls, duration_s=0.0,
    )  # fmt: skip


def opening(tools: list[dict[str, Any]]) -> tuple[Segment, ...]:
    known_by = tuple(key.hex() for key in head_keys(tools_key(tools), None))
    return (Segment(node="h", parent=None, role="system", token_ids=(1,), known_by=known_by),)


def sealed(execution: str) -> CallsSealed:
    return CallsSealed(execution=execution, num_calls=1, last_seq=1)


def folded(*events: CallRecorded | CallsSealed) -> Forks:
    forks = Forks()
    for event in events:
        forks.fold(event)
    return forks


def test_forks_are_counted_by_reason_and_role() -> None:
    report = folded(
        call("a"),
        call("a", "branch"),
        call("a", "branch", "sub-agent"),
        call("b", "delegation", "sub-agent"),
        call("b", "compaction"),
        call("b", "compaction"),
        call("c"),
    ).report()
    assert (report.num_calls, report.num_forks, report.num_unexplained) == (7, 5, 2)
    assert report.calls_by_role == {"main": 5, "sub-agent": 2}
    assert [(row.reason, row.num, row.by_role) for row in report.rows] == [
        ("branch", 2, {"main": 1, "sub-agent": 1}),
        ("compaction", 2, {"main": 2}),
        ("delegation", 1, {"sub-agent": 1}),
    ]
    assert [row.explained for row in report.rows] == [False, True, True]
    assert [(one.execution, one.num_unexplained, one.num_forks) for one in report.worst] == [
        ("a", 2, 2),
        ("b", 0, 3),
    ]
    assert report.unexplained_share == 2 / 7
    assert report.alarms == ()


def test_nothing_was_called() -> None:
    report = folded().report()
    assert (report.num_calls, report.unexplained_share, report.alarms) == (0, 0.0, ())


def test_too_many_unexplained_forks_raise_an_alarm() -> None:
    most = int(UNEXPLAINED_ALARM * 100)
    calm = [call()] * (100 - most) + [call(reason="dropped_turn")] * most
    assert folded(*calm).report().alarms == ()
    [alarm] = folded(*calm, call(reason="edited_history")).report().alarms
    assert alarm.startswith(f"{most + 1} of 101 calls")


def test_explained_forks_raise_none() -> None:
    explained = [call(reason=reason) for reason in sorted(EXPLAINED)]
    assert folded(*explained * UNEXPLAINED_MIN_CALLS).report().alarms == ()


def test_a_handful_of_calls_raises_none() -> None:
    few = [call(reason="repeat")] * (UNEXPLAINED_MIN_CALLS - 1)
    assert folded(*few).report().alarms == ()
    assert len(folded(*few, call()).report().alarms) == 1


def without_calls(num: int, tools: list[dict[str, Any]]) -> list[CallRecorded | CallsSealed]:
    events: list[CallRecorded | CallsSealed] = []
    for index in range(num):
        name = f"e{index}"
        events += [call(name, num_tool_calls=0, segments=opening(tools)), sealed(name)]
    return events


def test_no_tool_call_in_many_executions_raises_an_alarm() -> None:
    many = without_calls(NO_TOOL_CALLS_ALARM, TOOLS)
    [alarm] = folded(*many).report().alarms
    assert alarm.startswith(f"the last {NO_TOOL_CALLS_ALARM} executions")
    assert folded(*many[:-2]).report().alarms == ()
    assert folded(*many, call("x", segments=opening(TOOLS)), sealed("x")).report().alarms == ()


def test_no_tool_call_where_there_are_no_tools_raises_none() -> None:
    assert folded(*without_calls(3 * NO_TOOL_CALLS_ALARM, [])).report().alarms == ()


@cache
def _kills(stream: str = "calls") -> tuple[Fact, ...]:
    """The calls, or the facts, of a recorded run."""
    return tuple(fact for name, fact in read_archive(RUNS / "kills.jsonl.gz") if name == stream)


async def _in_order(facts: Sequence[Fact]) -> AsyncIterator[Fact]:
    for fact in facts:
        yield fact


def exported(path: Path, reasons: dict[int, str]) -> Path:
    """The recorded run in a file, as if some calls had forked. reasons: by the call's position."""
    facts: list[Fact] = []
    for fact in _kills():
        body = fact.body
        if isinstance(body, CallRecorded) and len(facts) in reasons:
            body = body.model_copy(update={"fork_reason": reasons[len(facts)]})
        envelope = dataclasses.replace(fact.envelope, body=body)
        facts.append(dataclasses.replace(fact, envelope=envelope))
    written = write_archive(
        path,
        job=facts[0].job,
        release="0",
        facts=_in_order(_kills("facts")),
        calls=_in_order(facts),
        hider=Hider(),
    )
    asyncio.run(written)
    return path


def gyre_forks(home: Path, *options: str) -> Ended:
    return run_command(app, ("forks", *options), env={"COLUMNS": "120"}, home=home)


def test_gyre_forks_counts_an_exported_run(tmp_path: Path) -> None:
    ended = gyre_forks(tmp_path, "--file", str(RUNS / "kills.jsonl.gz"))
    assert (ended.returncode, ended.stderr) == (0, "")
    num = sum(isinstance(fact.body, CallRecorded) for fact in _kills())
    assert ended.stdout == f"{num} calls, 0 forks, 0 without an explanation (0.00% of the calls)\n"


def test_gyre_forks_names_reasons_executions_and_alarms(tmp_path: Path) -> None:
    calls = [n for n, fact in enumerate(_kills()) if isinstance(fact.body, CallRecorded)]
    reasons = dict.fromkeys(calls[:9], "dropped_turn") | {calls[9]: "compaction"}
    path = exported(tmp_path / "run.jsonl.gz", reasons)
    told = json.loads(gyre_forks(tmp_path, "--file", str(path), "--json").stdout)
    assert (told["num_calls"], told["num_forks"], told["num_unexplained"]) == (len(calls), 10, 9)
    assert [row["reason"] for row in told["rows"]] == ["dropped_turn", "compaction"]
    shown = gyre_forks(tmp_path, "--file", str(path)).stdout
    assert "dropped_turn" in shown
    assert told["worst"][0]["execution"] in shown
    assert shown.splitlines()[-1] == f"warning: {told['alarms'][0]}"
    report = RunReport(told["job"])
    for fact in _kills("facts"):
        report.fold_fact(fact.sequence, fact.envelope)
    for stream, fact in read_archive(path):
        if stream == "calls":
            report.fold_call(fact.envelope)
    summary = report.summary()
    assert (summary["forks"], summary["unexplained_forks"]) == (10, 9)
    assert summary["alarms"] == told["alarms"]


def test_gyre_forks_of_a_file_without_calls_or_without_a_run(tmp_path: Path) -> None:
    ended = gyre_forks(tmp_path, "--file", str(RUNS / "quickstart.jsonl.gz"))
    assert (ended.returncode, ended.stdout) == (0, "no calls in this log\n")
    assert "x.gz" in one_line(gyre_forks(tmp_path, "--file", "x.gz"))
