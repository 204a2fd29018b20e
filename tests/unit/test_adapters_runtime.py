"""A service's frame and its failpoints, each in a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 20

SERVICE = """
import asyncio, sys
from gyre.adapters.runtime import service_main
from gyre.adapters.settings import ServiceSettings

async def main(settings, runtime):
    runtime.ready()
    mode = sys.argv[1]
    if mode == "fail":
        raise RuntimeError("no more disk")
    if mode == "return":
        return
    try:
        await asyncio.sleep(60)
    finally:
        (settings.home / "cleaned").touch()

service_main(main, ServiceSettings, service="dummy")
"""

FAILING = """
import sys
from gyre.adapters.failpoints import failpoint
for turn in range(int(sys.argv[1])):
    failpoint("append")
    failpoint("other")
    print(turn, flush=True)
"""


def environment(home: Path, **extra: str) -> dict[str, str]:
    return {
        **os.environ,
        "GYRE_HOME": str(home),
        "GYRE_NATS_URL": "nats://127.0.0.1:1",
        "GYRE_DATABASE_URL": "postgresql+psycopg://",
        "GYRE_KEY_SECRET": "hunter2",
        **extra,
    }


def start(mode: str, home: Path, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SERVICE, mode],
        env=environment(home, **extra),
        stderr=subprocess.PIPE,
        text=True,
    )


def until_ready(home: Path) -> int:
    """The process id in the readiness file."""
    ready = home / "run" / "dummy.ready"
    deadline = time.monotonic() + LIMIT_S
    while not ready.exists():
        assert time.monotonic() < deadline, "never ready"
        time.sleep(0.02)
    return int(ready.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_service_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start("serve", tmp_path)
    assert until_ready(tmp_path) == process.pid
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert (tmp_path / "cleaned").exists()
    assert not (tmp_path / "run" / "dummy.ready").exists()
    actions = [json.loads(line)["event"] for line in errors.splitlines()]
    assert actions == ["ready", "stopping", "stopped"]


def test_a_failure_is_one_line_and_status_1(tmp_path: Path) -> None:
    process = start("fail", tmp_path)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    last = json.loads(errors.splitlines()[-1])
    assert (last["event"], last["error"]) == ("failed", "RuntimeError: no more disk")
    assert not (tmp_path / "run" / "dummy.ready").exists()


def test_a_service_whose_work_is_done_ends_with_status_0(tmp_path: Path) -> None:
    process = start("return", tmp_path)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def test_a_stale_readiness_file_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dummy.ready").write_text("1\n")
    process = start("fail", tmp_path)
    process.communicate(timeout=LIMIT_S)
    assert not (tmp_path / "run" / "dummy.ready").exists()


def test_bad_settings_are_one_line_and_status_2(tmp_path: Path) -> None:
    process = start("serve", tmp_path, GYRE_LOG_LEVEL="LOUD")
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert errors.startswith("dummy: settings: GYRE_LOG_LEVEL: ")
    assert errors.count("\n") == 1


def run_failing(home: Path, target: str | None, turns: int = 5) -> tuple[int, list[str]]:
    extra = {} if target is None else {"GYRE_FAILPOINT": target}
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(turns)],
        env=environment(home, **extra),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout.split()


def test_a_failpoint_kills_at_its_hit_and_once_per_stack(tmp_path: Path) -> None:
    assert run_failing(tmp_path, "append:3") == (-signal.SIGKILL, ["0", "1"])
    assert (tmp_path / "run" / "failpoint.append").exists()
    assert run_failing(tmp_path, "append:3") == (0, ["0", "1", "2", "3", "4"])


def test_each_named_failpoint_has_a_death_of_its_own(tmp_path: Path) -> None:
    assert run_failing(tmp_path, "append,other:2") == (-signal.SIGKILL, [])
    assert run_failing(tmp_path, "append,other:2") == (-signal.SIGKILL, ["0"])
    assert run_failing(tmp_path, "append,other:2")[0] == 0


def test_without_a_name_a_failpoint_does_nothing(tmp_path: Path) -> None:
    assert run_failing(tmp_path, None)[0] == 0
    assert run_failing(tmp_path, "elsewhere")[0] == 0
    assert not (tmp_path / "run").exists()
