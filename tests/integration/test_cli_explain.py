"""`gyre replay, why, staleness, compare, report, export, import`: of a stack's log and of files."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.keys import KeyIdentity, make_key
from gyre.cli import app
from gyre.contracts import subjects
from gyre.contracts.codec import encode, make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.testkit.command_line import Ended, one_line, run_command
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

KEY = make_key("s", KeyIdentity(job="job", execution="job-g0000-e0", attempt=1))
STACK_SECRET = "5ecre7" * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A directory with a log server to ask, or without one. facts: what the job's log holds."""

    home: Path
    nats: str
    facts: list[tuple[int, float, Body]]

    def gyre(self, *arguments: str, stack: bool = True) -> Ended:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "COLUMNS": "200"}
        env |= {"GYRE_HOME": str(self.home / "stack")}
        env |= {"GYRE_NATS_URL": self.nats} if stack else {}
        return run_command(app, arguments, env=env, home=self.home)

    def first(self, kind: type[Body]) -> tuple[int, float]:
        """Sequence and time of the first fact of `kind`."""
        return next((n, at) for n, at, body in self.facts if isinstance(body, kind))


async def _fill(
    url: str, facts: list[tuple[int, float, Body]], calls: list[Body], job: str = "job"
) -> None:
    await ensure_streams(url)
    log = JetStreamEventLog(url)
    placed = [(subjects.sched(job), at, body) for _, at, body in facts]
    placed += [(subjects.calls(job, "job-g0000-e0"), 0.0, body) for body in calls]
    for number, (subject, at, body) in enumerate(placed):
        identity = f"{job}-{number}"
        envelope = make_envelope(
            body, identity=identity, job=job, aggregate=subject, time=at, causation=""
        )
        await log.append(subject, encode(envelope), event_id=identity, expected=None)
    await log.close()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A finished job in a real log, whose engine once said what it should not."""
    world = World(job_spec(heldout=False, num_steps=3), lambda number: 1.0 + number % 3)
    world.run()
    facts = list(world.log)
    number, ended_at, _ = facts[-1]
    said = f"{KEY} and {STACK_SECRET} in /home/me/run"
    facts.append((number + 1, ended_at, cell_events.EngineLost(cell=2, error=said)))
    calls: list[Body] = [call_events.CallsSealed(execution="job-g0000-e0", num_calls=0, last_seq=0)]
    home = tmp_path_factory.mktemp("explain")
    (home / "stack").mkdir()
    (home / "stack" / "secret.json").write_text(json.dumps({"api_token": STACK_SECRET}))
    server = NatsServer(home / "nats").start()
    try:
        asyncio.run(_fill(server.url, facts, calls))
        asyncio.run(_fill(server.url, facts[:80], [], job="running"))
        yield Terminal(home=home, nats=server.url, facts=facts)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def exported(terminal: Terminal) -> Path:
    ended = terminal.gyre("export", "job", "-o", "run.jsonl.gz", "--hide", "/home/me")
    assert ended.returncode == 0, ended.stderr
    assert f"{len(terminal.facts)} facts, 1 calls" in ended.stdout
    assert "3 texts hidden" in ended.stdout
    return terminal.home / "run.jsonl.gz"


def test_an_export_holds_no_secret(terminal: Terminal, exported: Path) -> None:
    text = gzip.decompress(exported.read_bytes()).decode()
    assert KEY not in text
    assert STACK_SECRET not in text
    assert "/home/me" not in text
    assert "[hidden] and [hidden] in [hidden]/run" in text


@pytest.mark.parametrize(
    "command",
    [
        ("replay",),
        ("replay", "--diff"),
        ("replay", "--until", "100"),
        ("replay", "--until", "+5"),
        ("why", "--at", "+9"),
        ("why", "--at", "+9", "--json"),
        ("staleness",),
        ("staleness", "--json"),
    ],
)
def test_the_log_the_file_and_the_imported_run_say_the_same(
    terminal: Terminal, exported: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    assert terminal.gyre("import", str(exported)).returncode == 0
    from_log = terminal.gyre(name, "job", *options)
    assert from_log.returncode == 0, from_log.stderr
    assert from_log.stdout
    from_file = terminal.gyre(name, "--file", str(exported), *options, stack=False)
    assert from_file.stdout == from_log.stdout
    assert terminal.gyre(name, "job", *options, stack=False).stdout == from_log.stdout


def test_replay_stops_at_a_sequence_a_time_or_an_offset(terminal: Terminal) -> None:
    sequence, moment = terminal.first(sched.BurstStarted)
    shown = json.loads(terminal.gyre("replay", "job", "--until", str(sequence)).stdout)
    assert (shown["sequence"], shown["burst"]) == (sequence, 0)
    before = json.loads(terminal.gyre("replay", "job", "--until", str(sequence - 1)).stdout)
    assert (before["sequence"], before["burst"]) == (sequence - 1, None)
    for until in (f"+{moment + 1e-4:.4f}", f"{moment + 1e-4:.4f}"):
        then = json.loads(terminal.gyre("replay", "job", "--until", until).stdout)
        assert (then["burst"], then["sequence"] >= sequence) == (0, True)
    iso = json.loads(terminal.gyre("replay", "job", "--until", "1970-01-01T00:00:00.500Z").stdout)
    assert iso["phase"] == "booting"


def test_diff_counts_the_decisions_and_names_the_first_that_differs(
    terminal: Terminal, exported: Path, tmp_path: Path
) -> None:
    ended = terminal.gyre("replay", "job", "--diff")
    assert ended.stdout.startswith("no decision differs: ")
    sequence, _ = terminal.first(sched.TransitionStarted)
    facts = [
        (n, at, body.model_copy(update={"cell": 2}) if n == sequence else body)
        for n, at, body in terminal.facts
    ]
    server = NatsServer(tmp_path / "nats").start()
    try:
        asyncio.run(_fill(server.url, facts, []))
        other = Terminal(home=terminal.home, nats=server.url, facts=facts)
        ended = other.gyre("replay", "job", "--diff")
    finally:
        server.stop()
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0].startswith(
        f"decision transition_started at {sequence} differs (based on {sequence - 1}"
    )
    assert ended.stdout.splitlines()[1:] == ["  cell: recorded 2, decided 0"]


def test_why_at_a_decision_explains_that_decision(terminal: Terminal) -> None:
    sequence, _ = terminal.first(sched.TransitionStarted)
    text = terminal.gyre("why", "job", "--at", str(sequence)).stdout
    assert f"asked about: transition_started at {sequence}" in text
    assert "cell 0 joins training now" in text
    assert "yes eq. (2)" in text
    told = json.loads(terminal.gyre("why", "job", "--at", str(sequence), "--json").stdout)
    assert (told["starts"], told["cell"]) == (True, 0)
    assert told["decision"]["waterlevel"] == told["checks"][2]["left"]
    assert told["decision"]["capacity_after"] == told["checks"][2]["right"]
    ended, _ = terminal.first(sched.BurstEnded)
    told = json.loads(terminal.gyre("why", "job", "--at", str(ended), "--json").stdout)
    assert told["burst_end"]["capacity"] == told["decision"]["capacity_without_core"]


def test_why_of_a_running_job_asks_about_now(terminal: Terminal) -> None:
    told = json.loads(terminal.gyre("why", "running", "--json").stdout)
    assert told["status"] == "running"
    assert told["now"] == pytest.approx(time.time(), abs=60.0)
    assert "decision" not in told


def test_why_of_a_cell_says_why_it_is_not_its_turn(terminal: Terminal) -> None:
    sequence, _ = terminal.first(sched.TransitionStarted)
    text = terminal.gyre("why", "job", "--at", str(sequence), "--cell", "2").stdout
    assert "cell 2 does not join training: it is cell 0's turn" in text


def test_why_says_how_long_a_levelled_burst_is(terminal: Terminal, tmp_path: Path) -> None:
    world = World(
        job_spec(heldout=False, policy="gyre+", num_steps=5, executions_per_group=2),
        lambda number: 1.0 + number % 3,
    )
    world.run()
    server = NatsServer(tmp_path / "nats").start()
    try:
        asyncio.run(_fill(server.url, world.log, []))
        levelled = Terminal(home=terminal.home, nats=server.url, facts=world.log)
        first, last = (n for n, _, body in world.log if isinstance(body, sched.BurstEnded))
        told = json.loads(levelled.gyre("why", "job", "--at", str(first), "--json").stdout)
        text = levelled.gyre("why", "job", "--at", str(last)).stdout
    finally:
        server.stop()
    assert told["burst"]["num_steps"] == 2
    assert told["burst_end"]["next_groups"] * 2 == told["decision"]["next_dispatch"]
    assert "burst 1 has 3 steps, from step 2, instead of mu = 2: the last burst is long" in text
    assert "NO  next burst: 5 of 5 steps are done" in text
    assert "burst 1 ends after 3 steps (mu is 2), the core goes back" in text


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_staleness_is_drawn(terminal: Terminal, exported: Path, suffix: str) -> None:
    plot = terminal.home / f"plot.{suffix}"
    ended = terminal.gyre("staleness", "--file", str(exported), "--plot", str(plot))
    assert ended.returncode == 0, ended.stderr
    assert plot.stat().st_size > 5_000


def test_compare_puts_runs_side_by_side(terminal: Terminal, exported: Path) -> None:
    table = terminal.gyre("compare", "job", str(exported)).stdout
    assert table.count("gyre") == 2
    assert "step 3, s" in table
    times = json.loads(terminal.gyre("compare", "job", str(exported), "--json").stdout)
    assert times[0] == times[1]
    assert len(times[0]["step_s"]) == 3


def test_a_report_is_written_from_a_file(terminal: Terminal, exported: Path) -> None:
    ended = terminal.gyre("report", "--file", str(exported), "--out", "report", stack=False)
    assert ended.returncode == 0, ended.stderr
    assert (terminal.home / "report" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "job", "--until", "yesterday"), "'yesterday' is no point in a log: give a"),
        (("replay", "nobody"), "no job 'nobody' in the log"),
        (("replay",), "name a job, or a file with --file"),
        (("replay", "job", "--until", "0"), "no fact of job 'job' up to there"),
        (("why", "job", "--cell", "9"), "cell 9 is not the job's; its cells: 0, 1, 2"),
        (("why", "two words"), "id 'two words': use 1 to 80"),
        (("staleness", "job", "--plot", "x.jpg"), "give a file that ends in .svg or .png"),
        (("staleness", "job", "--plot", "no/x.svg"), "No such file or directory"),
        (("why", "--file", "none"), "none: cannot be read: No such file or directory"),
        (("why", "--file", "stack/secret.json"), "secret.json: cannot be read: Not a gzipped"),
        (("replay", "other", "--file", "run.jsonl.gz"), "holds job 'job', not 'other'"),
        (("import", "none"), "none: cannot be read"),
        (("export", "job", "-o", "no/run"), "no/run: No such file or directory"),
        (("export", "nobody"), "no job 'nobody' in the log"),
        (("compare", "nobody"), "no job 'nobody' in the log"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    terminal: Terminal, exported: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(terminal.gyre(*arguments))


def test_without_a_stack_and_a_file_it_says_how_to_start_one(terminal: Terminal) -> None:
    assert "no stack runs in" in one_line(terminal.gyre("replay", "nobody", stack=False))


def test_a_damaged_file_is_refused_and_nothing_of_it_stays(
    terminal: Terminal, exported: Path
) -> None:
    text = gzip.decompress(exported.read_bytes()).replace(b'"job": "job"', b'"job": "jab"', 1)
    damaged = terminal.home / "damaged.jsonl.gz"
    damaged.write_bytes(gzip.compress(text))
    assert "is of job 'job', not 'jab'" in one_line(terminal.gyre("import", str(damaged)))
    assert not list(terminal.home.glob("stack/imports/jab*"))


def test_another_run_of_the_same_job_does_not_replace_an_imported_one(
    terminal: Terminal, exported: Path
) -> None:
    assert terminal.gyre("import", str(exported)).returncode == 0
    assert terminal.gyre("import", str(exported)).returncode == 0
    assert terminal.gyre("export", "job", "--no-calls", "-o", "facts.gz").returncode == 0
    refused = one_line(terminal.gyre("import", "facts.gz"))
    assert "job job was imported before with other events; remove " in refused
