"""The supervisor over real processes: nothing is lost, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gyre import embedded
from gyre.embedded import control
from gyre.embedded.errors import EmbeddedError
from gyre.embedded.paths import StackPaths
from gyre.embedded.process import ProcessSpec, spawn

SUPPORT = Path(__file__).parent / "embedded_support"
STACK = "dummy_stack:plan"
DEADLINE_S = 20.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose path has a space in it; whatever runs there is stopped afterwards."""
    path = tmp_path / "with space" / ".gyre"
    yield path
    embedded.down(path, timeout_s=10)


def start(home: Path, processes: str, **options: object) -> embedded.StackInfo:
    environ = {**os.environ, "GYRE_DUMMY": processes, "PYTHONPATH": str(SUPPORT)}
    settings = {"cells": 1, "owner": os.getpid(), "timeout_s": DEADLINE_S, **options}
    return embedded.up(home, environ=environ, stack=STACK, **settings)  # type: ignore[arg-type]


def pid_of(home: Path, name: str) -> int:
    return next(s.pid for s in embedded.status(home) if s.name == name and s.pid)


def exists(pid: int) -> bool:
    """Whether a process has this id; one that only waits to be reaped has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def restarted(home: Path, name: str, old: int) -> bool:
    return any(
        s.name == name and s.state == "ready" and s.pid != old for s in embedded.status(home)
    )


def test_up_returns_when_every_process_is_ready(home: Path) -> None:
    info = start(home, "a:wait,b:wait,once:oneshot")
    states = {s.name: s.state for s in embedded.status(home)}
    assert states == {"supervisor": "ready", "a": "ready", "b": "ready", "once": "finished"}
    assert info.token
    assert embedded.attach(home) == info
    assert (home / "secret.json").stat().st_mode & 0o077 == 0


def test_a_killed_process_is_restarted_and_says_so(home: Path) -> None:
    start(home, "a:wait,b:wait")
    old, other = pid_of(home, "a"), pid_of(home, "b")
    os.kill(old, signal.SIGKILL)
    eventually(lambda: restarted(home, "a", old), "a is ready again")
    assert pid_of(home, "b") == other
    line = json.loads((home / "run" / "restarts.jsonl").read_text().splitlines()[-1])
    assert (line["name"], line["pid"], line["how"]) == ("a", old, "signal SIGKILL")
    assert "a (pid" in (home / "logs" / "supervisor.log").read_text()
    assert next(s.restarts for s in embedded.status(home) if s.name == "a") == 1


def test_down_leaves_no_process_not_even_a_detached_grandchild(home: Path) -> None:
    start(home, "a:wait,d:detach,s:stubborn")
    pids = [s.pid for s in embedded.status(home) if s.pid is not None]
    pids.append(int((home / "grandchild").read_text()))
    assert all(exists(pid) for pid in pids)
    assert embedded.down(home) is True
    assert [pid for pid in pids if exists(pid)] == []
    assert embedded.status(home) == []
    assert embedded.down(home) is False


def test_nothing_outlives_a_killed_supervisor(home: Path) -> None:
    start(home, "a:wait,s:stubborn")
    pids = [s.pid for s in embedded.status(home) if s.pid is not None]
    os.kill(pid_of(home, "supervisor"), signal.SIGKILL)
    eventually(lambda: not any(exists(pid) for pid in pids), "all are gone")
    assert embedded.status(home) == []
    start(home, "a:wait")
    assert [s.state for s in embedded.status(home)] == ["ready", "ready"]


def test_a_second_up_finds_the_running_stack(home: Path) -> None:
    first = start(home, "a:wait")
    pid = pid_of(home, "a")
    assert start(home, "a:wait") == first
    assert pid_of(home, "a") == pid


def test_a_second_up_with_other_cells_says_so(home: Path) -> None:
    start(home, "a:wait")
    with pytest.raises(embedded.StackMismatch, match=r"1 cells .* not 2: stop it first"):
        start(home, "a:wait", cells=2)


def test_concurrent_ups_start_one_stack(home: Path) -> None:
    infos: list[embedded.StackInfo] = []
    threads = [
        threading.Thread(target=lambda: infos.append(start(home, "a:wait"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=DEADLINE_S)
    assert len(infos) == 3
    log = (home / "logs" / "supervisor.log").read_text()
    assert log.count("stack ready") == 1


def test_the_token_survives_a_restart_of_the_stack(home: Path) -> None:
    first = start(home, "a:wait")
    embedded.down(home)
    assert start(home, "a:wait").token == first.token


def test_a_client_waits_in_the_backlog_while_the_proxy_is_away(home: Path) -> None:
    info = start(home, "proxy:echo")
    old = pid_of(home, "proxy")
    os.kill(old, signal.SIGKILL)
    eventually(lambda: not exists(old), "the old proxy has taken its last connection")
    with socket.create_connection(("127.0.0.1", info.ports["proxy"]), timeout=DEADLINE_S) as call:
        answer = call.makefile().readline()
    assert int(answer) != old
    eventually(lambda: restarted(home, "proxy", old), "the proxy is ready again")
    assert pid_of(home, "proxy") == int(answer)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("bad-settings", r"x ended with exit status 2: dummy: settings: GYRE_COLOUR"),
        ("crash", r"x ended with exit status 1: dummy: cannot work like this"),
    ],
)
def test_a_process_that_cannot_start_fails_the_start_in_one_line(
    home: Path, behaviour: str, message: str
) -> None:
    with pytest.raises(embedded.StackFailed, match=message) as raised:
        start(home, f"a:wait,x:{behaviour}")
    assert "\n" not in str(raised.value)
    assert embedded.status(home) == []


def test_a_start_past_its_deadline_names_what_is_missing_and_leaves_nothing(home: Path) -> None:
    with pytest.raises(embedded.StackFailed, match=r"not ready after 2 s: .*x"):
        start(home, "a:wait,x:slow-start", timeout_s=2.0)
    assert embedded.status(home) == []


def test_a_stack_ends_with_its_owner(home: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start(home, "a:wait", owner=owner.pid)
    pid = pid_of(home, "a")
    owner.communicate(b"\n", timeout=10)
    eventually(lambda: not exists(pid), "a is gone")
    eventually(lambda: embedded.status(home) == [], "the supervisor is gone")


def test_progress_is_reported_while_the_stack_starts(home: Path) -> None:
    seen: list[set[str]] = []
    start(home, "a:late", on_progress=lambda rows: seen.append({row.name for row in rows}))
    assert {"supervisor", "a"} in seen


def test_purge_deletes_the_state(home: Path) -> None:
    start(home, "a:wait")
    embedded.down(home, purge=True)
    assert not home.exists()


def test_every_process_sees_the_environment_it_was_given_and_no_terminal(home: Path) -> None:
    start(home, "a:wait")
    process = psutil.Process(pid_of(home, "a"))
    assert process.environ()["GYRE_HOME"] == str(StackPaths.of(home).home)
    assert process.terminal() is None
    assert os.getpgid(process.pid) == process.pid == os.getsid(process.pid)


def test_spawn_reports_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn(ProcessSpec(name="x", argv=("/nonexistent",)), tmp_path / "x.log")


def test_a_process_that_was_stopped_alone_stays_down_until_it_is_started(home: Path) -> None:
    start(home, "a:wait,b:wait")
    old, other = pid_of(home, "a"), pid_of(home, "b")
    control.stop_process(home, "a")
    assert not exists(old)
    assert {s.name: s.state for s in embedded.status(home)}["a"] == "held"
    assert pid_of(home, "b") == other
    control.start_process(home, "a")
    eventually(lambda: restarted(home, "a", old), "a is ready again")
    assert next(s.restarts for s in embedded.status(home) if s.name == "a") == 0
    with pytest.raises(EmbeddedError, match="no process 'c'; there are a, b"):
        control.stop_process(home, "c")
