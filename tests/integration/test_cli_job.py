"""`gyre job ...` as a process against a real scheduler: faults are one line and exit status 2."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
import yaml
from pydantic import SecretStr
from structlog.testing import capture_logs

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.cli import app
from gyre.scheduler.api import create_app
from gyre.scheduler.loop import SchedulerLoop
from gyre.testkit.command_line import Ended, one_line, run_command
from gyre.testkit.nats_server import free_port
from gyre.testkit.scheduler_world import Cells, RecordedQueue, sound_job

TOKEN = "cli-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    url: str
    home: Path

    def env(self, **changes: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GYRE_HOME": str(self.home / "stack"),
            "GYRE_SCHEDULER_URL": self.url,
            "GYRE_API_TOKEN": TOKEN,
            **changes,
        }

    def gyre(self, *arguments: str, **changes: str) -> Ended:
        return run_command(app, arguments, env=self.env(**changes), home=self.home)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A scheduler with three cells online, in a thread of its own."""
    port, started, stop = free_port(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(port, started, stop)))
    with capture_logs():  # the scheduler's log shall not mix with what the command prints
        thread.start()
        assert started.wait(30.0)
        yield Api(url=f"http://127.0.0.1:{port}", home=tmp_path_factory.mktemp("cli"))
        stop.set()
        thread.join(30.0)


async def _serve(port: int, started: threading.Event, stop: threading.Event) -> None:
    journal = Journal(MemoryEventLog(), SystemClock())
    loop = SchedulerLoop(journal, RecordedQueue(), SystemClock())
    api = create_app(loop, journal, SecretStr(TOKEN))
    server = uvicorn.Server(uvicorn.Config(api, port=port, log_config=None))
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    running = asyncio.create_task(loop.run(asyncio.Event()))
    serving = asyncio.create_task(server.serve())
    await Cells(journal).register()
    while not server.started or len(loop.state.online) < 3:
        await asyncio.sleep(0.02)
    started.set()
    while not stop.is_set():
        await asyncio.sleep(0.05)
    server.should_exit = True
    await serving
    running.cancel()
    await asyncio.wait({running})


class _no_signals:  # noqa: N801  stands where a context manager function is
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _job_file(api: Api, **changes: object) -> Path:
    path = api.home / "job.yaml"
    path.write_text(yaml.safe_dump(sound_job(api.home) | changes))
    return path


def test_a_job_is_paused_resumed_and_drained(api: Api) -> None:
    """The module's first job: nobody here gives cells back, so the later ones stay queued."""
    job = api.gyre("job", "submit", str(_job_file(api))).stdout.strip()
    assert "running, paused" in api.gyre("job", "pause", job).stdout
    assert "running, paused" in api.gyre("job", "ls", COLUMNS="120").stdout
    assert "running, not paused" in api.gyre("job", "resume", job).stdout
    assert "draining" in api.gyre("job", "drain", job).stdout
    last = api.gyre("job", "logs", job).stdout.splitlines()[-1]
    assert json.loads(last)["body"]["reason"] == "drained after step 0"
    for request in ("pause", "resume", "drain"):
        assert "is not running, it is succeeded" in one_line(api.gyre("job", request, job))


def test_a_job_is_submitted_shown_listed_cancelled_and_its_facts_followed(api: Api) -> None:
    submitted = api.gyre("job", "submit", str(_job_file(api)))
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    assert job.startswith("job-")
    shown = json.loads(api.gyre("job", "show", job).stdout)
    assert shown["id"] == job
    assert job in api.gyre("job", "ls", COLUMNS="120").stdout
    assert "cancellation requested" in api.gyre("job", "cancel", job).stdout
    lines = [json.loads(line) for line in api.gyre("job", "logs", job).stdout.splitlines()]
    assert [lines[0]["type"], lines[-1]["type"]] == ["job_submitted", "job_finished"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"surprise": 1}, "surprise: unknown field; remove it or correct its spelling"),
        ({"name": "two words"}, "name: id 'two words': use 1 to 80 letters"),
        ({"cells": {"count": 7, "capacity": 1}}, "cells.count: 7 cells wanted, 3 are online"),
        ({"schedule": {}}, "schedule.num_steps: is missing; set it"),
        ({"model": {"path": "/nowhere"}}, "model.path: /nowhere is no directory"),
    ],
)
def test_a_refused_job_is_the_schedulers_one_line(
    api: Api, changes: dict[str, object], words: str
) -> None:
    assert words in one_line(api.gyre("job", "submit", str(_job_file(api, **changes))))


def test_a_job_file_that_is_none_is_one_line(api: Api) -> None:
    assert "no such file" in one_line(api.gyre("job", "submit", "none.yaml"))
    (api.home / "bad.yaml").write_text("a: [1\n")
    assert "is no YAML" in one_line(api.gyre("job", "submit", "bad.yaml"))


@pytest.mark.parametrize("command", ["show", "cancel", "pause", "resume", "drain", "logs"])
def test_an_unknown_job_is_one_line(api: Api, command: str) -> None:
    assert "no job 'nobody'" in one_line(api.gyre("job", command, "nobody"))


def test_as_a_program_it_says_its_one_line_and_ends_with_status_2(api: Api) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gyre.cli.app", "job", "submit", "none.yaml"],
        env=api.env(),
        cwd=api.home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    line = one_line(Ended(returncode=ended.returncode, stdout=ended.stdout, stderr=ended.stderr))
    assert "no such file" in line


def test_a_wrong_token_is_one_line_and_is_not_repeated(api: Api) -> None:
    line = one_line(api.gyre("job", "ls", GYRE_API_TOKEN="stolen"))
    assert "bearer token" in line
    assert "stolen" not in line


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"GYRE_SCHEDULER_URL": "http://127.0.0.1:9"}, "start one with `gyre up`"),
        ({"GYRE_SCHEDULER_URL": "127.0.0.1:9"}, "start one with `gyre up`"),
        ({"GYRE_SCHEDULER_URL": "http://[::bad"}, "no URL of a scheduler"),
        ({"GYRE_API_TOKEN": ""}, "GYRE_API_TOKEN is not: set both"),
        ({"GYRE_SCHEDULER_URL": ""}, "no stack runs in"),
    ],
)
def test_no_scheduler_is_one_line(api: Api, env: dict[str, str], words: str) -> None:
    assert words in one_line(api.gyre("job", "ls", **env))


@pytest.mark.parametrize("command", [("replay", "job-1"), ("report", "job-1")])
def test_no_event_log_is_one_line(api: Api, command: tuple[str, ...]) -> None:
    one_line(api.gyre(*command))
    one_line(api.gyre(*command, GYRE_NATS_URL="nats://127.0.0.1:9"))


def test_another_server_is_no_scheduler(api: Api) -> None:
    """The health path of any server answers; a view it is not."""
    line = one_line(api.gyre("job", "ls", GYRE_SCHEDULER_URL=f"{api.url}/healthz?"))
    assert "gyre: " in line


def test_cells_are_listed_and_what_cannot_be_released_is_one_line(api: Api) -> None:
    listed = api.gyre("cells", "ls")
    assert listed.returncode == 0
    rows = [line.split()[1] for line in listed.stdout.splitlines() if line.startswith("│")]
    assert rows == [*"012"]
    refused = api.gyre("cells", "release", "none", "0")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "gyre: no job 'none'; `gyre job ls` lists the jobs\n"
