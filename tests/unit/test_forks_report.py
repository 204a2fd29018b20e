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
from gyre.contracts.alarms import AlarmsSection
from gyre.contracts.events.calls import CallRecorded, CallsSealed, RequestRole, Segment
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.core.forks import ForkReport, Forks
from gyre.core.matching.echoes import head_keys, tools_key
from gyre.core.matching.reasons import EXPLAINED
from gyre.core.report import RunReport
from gyre.testkit.command_line import Ended, one_line, run_command

LIMITS = AlarmsSection()
RUNS = Path(__file__).parents[1] / "replay" / "runs"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "run"}}]


def call(
    execution: str = "e",
    reason: str | None = None,
    role: RequestRole = "main",
    *,
    num_tool_calls: int = 1,
    num_malformed: int = 0,
    segments: tuple[Segment, ...] = (),
) -> CallRecorded:
    return CallRecorded(
        call=f"{execution}-c0", execution=execution, attempt=1, request_role=role, parent=None,
        segments=segments, node="n", output_ids=(), output_logprobs=(), spans=(),
        num_input_tokens=1, num_cached_tokens=0, temperature=1.0, max_new_tokens=1,
        finish_reason="stop", outcome="committed", fork_reason=reason,
        num_tool_calls=num_tool_calls, num_malformed_tool_calls=num_malformed, duration_s=0.0,
    )  # fmt: skip


def opening(tools: list[dict[str, Any]]) -> tuple[Segment, ...]:
    known_by = tuple(key.hex() for key in head_keys(tools_key(tools), None))
    return (Segment(node="h", parent=None, role="system", token_ids=(1,), known_by=known_by),)


def sealed(execution: str) -> CallsSealed:
    return CallsSealed(execution=execution, num_calls=1, last_seq=1)


def counted(*events: CallRecorded | CallsSealed, limits: AlarmsSection = LIMITS) -> ForkReport:
    forks = Forks()
    for event in events:
        forks.fold(event)
    return forks.report(limits)


def test_forks_are_counted_by_reason_and_role() -> None:
    report = counted(
        call("a"),
        call("a", "branch"),
        call("a", "branch", "sub-agent"),
        call("b", "delegation", "sub-agent"),
        call("b", "compaction"),
        call("b", "compaction"),
        call("c"),
    )
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
    report = counted()
    assert (report.num_calls, report.unexplained_share, report.alarms) == (0, 0.0, ())


def test_too_many_unexplained_forks_raise_an_alarm() -> None:
    most = int(LIMITS.unexplained_forks * 100)
    calm = [call()] * (100 - most) + [call(reason="dropped_turn")] * most
    assert counted(*calm).alarms == ()
    [alarm] = counted(*calm, call(reason="edited_history")).alarms
    assert alarm.startswith(f"{most + 1} of 101 calls")
    assert "more than 2%" in alarm
    loose = AlarmsSection(unexplained_forks=0.03)
    assert counted(*calm, call(reason="edited_history"), limits=loose).alarms == ()
    tight = AlarmsSection(unexplained_forks=0.01, min_calls=101)
    assert counted(*calm, limits=tight).alarms == ()
    assert len(counted(*calm, call(), limits=tight).alarms) == 1


def test_explained_forks_raise_none() -> None:
    explained = [call(reason=reason) for reason in sorted(EXPLAINED)]
    assert counted(*explained * LIMITS.min_calls).alarms == ()


def test_a_handful_of_calls_raises_none() -> None:
    few = [call(reason="repeat")] * (LIMITS.min_calls - 1)
    assert counted(*few).alarms == ()
    assert len(counted(*few, call()).alarms) == 1


def without_calls(num: int, tools: list[dict[str, Any]]) -> list[CallRecorded | CallsSealed]:
    events: list[CallRecorded | CallsSealed] = []
    for index in range(num):
        name = f"e{index}"
        events += [call(name, num_tool_calls=0, segments=opening(tools)), sealed(name)]
    return events


def test_no_tool_call_in_many_executions_raises_an_alarm() -> None:
    many = without_calls(LIMITS.executions_without_tool_calls, TOOLS)
    [alarm] = counted(*many).alarms
    assert alarm.startswith(f"the last {LIMITS.executions_without_tool_calls} executions")
    assert counted(*many[:-2]).alarms == ()
    assert counted(*many, call("x", segments=opening(TOOLS)), sealed("x")).alarms == ()


def test_tool_calls_that_cannot_be_read_raise_an_alarm() -> None:
    good = [call(), call(num_tool_calls=0)] * LIMITS.min_calls
    bad = [call(num_tool_calls=0, num_malformed=2)] * LIMITS.min_calls
    report = counted(*good, *bad)
    assert (report.num_calling, report.num_malformed) == (2 * LIMITS.min_calls, LIMITS.min_calls)
    assert report.alarms == ()
    [alarm] = counted(*good, *bad, bad[0]).alarms
    assert alarm.startswith("51 of 101 calls that call tools (50.5%)")
    assert counted(*bad[1:]).alarms == ()
    off = AlarmsSection(malformed_calls=1.0)
    assert counted(*bad, limits=off).alarms == ()


def test_the_jobs_own_limit_of_executions_counts() -> None:
    few = without_calls(3, TOOLS)
    assert counted(*few).alarms == ()
    strict = AlarmsSection(executions_without_tool_calls=3)
    assert len(counted(*few, limits=strict).alarms) == 1


def test_no_tool_call_where_there_are_no_tools_raises_none() -> None:
    assert counted(*without_calls(3 * LIMITS.executions_without_tool_calls, [])).alarms == ()


@cache
def _kills(stream: str = "calls") -> tuple[Fact, ...]:
    """The calls, or the facts, of a recorded run."""
    return tuple(fact for name, fact in read_archive(RUNS / "kills.jsonl.gz") if name == stream)


async def _in_order(facts: Sequence[Fact]) -> AsyncIterator[Fact]:
    for fact in facts:
        yield fact


def exported(path: Path, reasons: dict[int, str], limits: AlarmsSection = LIMITS) -> Path:
    """The recorded run in a file, as if some calls had forked. reasons: by the call's position.
    limits: as if its job had them."""
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
        facts=_in_order([_with_limits(fact, limits) for fact in _kills("facts")]),
        calls=_in_order(facts),
        hider=Hider(),
    )
    asyncio.run(written)
    return path


def _with_limits(fact: Fact, limits: AlarmsSection) -> Fact:
    body = fact.body
    if not isinstance(body, JobSubmitted):
        return fact
    body = body.model_copy(update={"spec": body.spec.model_copy(update={"alarms": limits})})
    return dataclasses.replace(fact, envelope=dataclasses.replace(fact.envelope, body=body))


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


def test_gyre_forks_warns_by_the_jobs_own_limits(tmp_path: Path) -> None:
    calls = [n for n, fact in enumerate(_kills()) if isinstance(fact.body, CallRecorded)]
    reasons = dict.fromkeys(calls[:9], "dropped_turn")
    patient = AlarmsSection(unexplained_forks=0.5)
    path = exported(tmp_path / "run.jsonl.gz", reasons, patient)
    assert json.loads(gyre_forks(tmp_path, "--file", str(path), "--json").stdout)["alarms"] == []


def test_gyre_forks_of_a_file_without_calls_or_without_a_run(tmp_path: Path) -> None:
    ended = gyre_forks(tmp_path, "--file", str(RUNS / "quickstart.jsonl.gz"))
    assert (ended.returncode, ended.stdout) == (0, "no calls in this log\n")
    assert "x.gz" in one_line(gyre_forks(tmp_path, "--file", "x.gz"))
