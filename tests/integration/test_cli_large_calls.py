"""The command line over a log that has the body of a call in the blob store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre.adapters.archive import read_archive
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.cli import app
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed, CallUndelivered
from gyre.testkit.command_line import Ended, one_line, run_command
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

EXECUTION = "job-g0000-e0"
CALLS: list[Body] = [
    CallUndelivered(call=f"{EXECUTION}-c0", execution=EXECUTION, reason="x" * 1_000_000),
    CallsSealed(execution=EXECUTION, num_calls=0, last_seq=1),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    home: Path
    nats: str

    @property
    def blobs(self) -> DirectoryBlobStore:
        return DirectoryBlobStore(self.home / "stack" / "blobs")

    def gyre(self, *arguments: str) -> Ended:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "COLUMNS": "400"}
        env |= {"GYRE_HOME": str(self.home / "stack"), "GYRE_NATS_URL": self.nats}
        return run_command(app, arguments, env=env, home=self.home)


async def _fill(url: str, blobs: DirectoryBlobStore) -> None:
    await ensure_streams(url)
    log = JetStreamEventLog(url)
    journal = Journal(log, SystemClock(), blobs)
    world = World(job_spec(heldout=False, num_steps=1), lambda _: 1.0)
    world.run()
    placed = [(subjects.sched("job"), body) for _, _, body in world.log]
    placed += [(subjects.calls("job", EXECUTION), body) for body in CALLS]
    for number, (subject, body) in enumerate(placed):
        await journal.append(subject, body, job="job", cause=(number,), expected=None)
    await log.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    server = NatsServer(tmp_path / "nats").start()
    terminal = Terminal(home=tmp_path, nats=server.url)
    try:
        asyncio.run(_fill(server.url, terminal.blobs))
        yield terminal
    finally:
        server.stop()


def test_an_exported_run_holds_large_calls_whole_and_a_lost_one_is_named(
    terminal: Terminal,
) -> None:
    ended = terminal.gyre("export", "job", "-o", "run.jsonl.gz")
    assert ended.returncode == 0, ended.stderr
    archive = terminal.home / "run.jsonl.gz"
    assert [fact.body for kind, fact in read_archive(archive) if kind == "calls"] == CALLS
    assert terminal.gyre("report", "job").returncode == 0

    [blob] = [path for path in terminal.blobs.root.rglob("*") if path.is_file()]
    blob.unlink()
    assert terminal.gyre("export", "job", "-o", "facts.jsonl.gz", "--no-calls").returncode == 0
    refused = one_line(terminal.gyre("export", "job", "-o", "lost.jsonl.gz"))
    assert not list(terminal.home.glob("lost*"))
    # A report tells what there is, and says what is not in it.
    reported = terminal.gyre("report", "job")
    assert reported.returncode == 0
    [warning] = reported.stderr.splitlines()
    assert warning.startswith("warning: passed over: ")
    for said in (refused, warning):
        assert "event 1 on calls.job.exec.job-g0000-e0, call_undelivered" in said
        assert blob.name in said
    # What was exported needs the blob store no more.
    assert [fact.body for kind, fact in read_archive(archive) if kind == "calls"] == CALLS
