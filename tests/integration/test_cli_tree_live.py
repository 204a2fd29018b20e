"""`gyre tree` on the log of a stack, with bodies in the blob store, and with one that is lost."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import gyre.adapters.journal as journal_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.cli import app
from gyre.contracts.codec import BodyElsewhere, decode
from gyre.core.tree import fold
from gyre.testkit.command_line import Ended, one_line, run_command
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.trajectory_world import World, calls_of, small_spec

JOB, SEED = "job", 4
EXECUTION = f"{JOB}-g0000-e1"


def gyre(nats: NatsServer, home: Path, *arguments: str) -> Ended:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GYRE_NATS_URL": nats.url}
    return run_command(app, arguments, env=env | {"GYRE_HOME": str(home / "stack")}, home=home)


async def fill(url: str, blobs: DirectoryBlobStore) -> str:
    """The digest of EXECUTION's second call that lies in the blob store."""
    log = JetStreamEventLog(url)
    world = World(Journal(log, SystemClock(), blobs), JOB, small_spec(), seed=SEED)
    await world.submit()
    await world.dispatch(range(1))
    await world.finish_group(0, (1.0, 0.0, 0.5, None))
    digests = []
    subject = f"calls.{JOB}.exec.{EXECUTION}"
    async for recorded in log.read(Stream.CALLS, subjects=(subject,)):
        try:
            decode(recorded.data)
        except BodyElsewhere as elsewhere:
            digests.append(elsewhere.reference.digest)
    await log.close()
    return digests[1]


def test_a_live_logs_tree_is_whole_and_a_lost_body_is_named_with_what_came_before(
    nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", 450)
    blobs = DirectoryBlobStore(tmp_path / "stack" / "blobs")
    digest = asyncio.run(fill(nats.url, blobs))
    tree = fold(calls_of(EXECUTION, SEED))

    shown = gyre(nats, tmp_path, "tree", EXECUTION, "--json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert [node["id"] for node in told["nodes"]] == list(tree.nodes)
    assert (told["reward"], told["sealed"], told["damaged"]) == (0.0, True, None)

    blobs.path(digest).unlink()
    told = json.loads(gyre(nats, tmp_path, "tree", EXECUTION, "--json").stdout)
    assert digest in told["damaged"]
    assert told["admission"]["paths"] == []
    seen = [node["id"] for node in told["nodes"]]
    assert seen == list(tree.nodes)[: len(seen)]
    assert 0 < len(seen) < len(tree.nodes)
    # Its siblings are as they were.
    sibling = json.loads(gyre(nats, tmp_path, "tree", f"{JOB}-g0000-e0", "--json").stdout)
    assert sibling["damaged"] is None

    nobody = one_line(gyre(nats, tmp_path, "tree", f"{JOB}-g0000-e7"))
    assert f"job '{JOB}' has no execution '{JOB}-g0000-e7' in this log" in nobody
    assert "no job 'other' in the log" in one_line(gyre(nats, tmp_path, "tree", "other-g0000-e0"))
