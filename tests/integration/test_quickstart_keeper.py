"""The keeper with real processes: what is launched is recorded, found again, and ended whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gyre.core.execution import Exit
from gyre.runner import keeper as keepers
from gyre.runner.keeper import (
    HarnessVanished,
    Keeper,
    LaunchFailed,
    LaunchHandle,
    LaunchRequest,
    WarmStart,
)
from gyre.runner.processes import is_alive, list_processes, read_process

PROGRAM = '''
"""A program with an expensive import, as a harness has one."""
import atexit, os, sys, time
LOADED_BY = os.getpid()
def main():
    atexit.register(lambda: print("exiting", flush=True))
    if sys.argv[1] == "show":
        print(LOADED_BY != os.getpid(), os.getcwd(), sorted(os.environ), sys.argv[2:])
        print("to stderr", file=sys.stderr)
        return int(sys.argv[2])
    time.sleep(float(sys.argv[2]))
'''


def request(
    tmp_path: Path, name: str, *argv: str, limits: Mapping[str, int] | None = None
) -> LaunchRequest:
    folder = tmp_path / name
    (folder / "work dir").mkdir(parents=True, exist_ok=True)
    return LaunchRequest(
        argv=argv,
        env={"PATH": "/usr/bin:/bin", "ONLY": "this"},
        cwd=folder / "work dir",
        stdout=folder / "out",
        stderr=folder / "err",
        status=folder / "status.json",
        limits=limits or {},
    )


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Keeper]:
    """A keeper that executes programs."""
    keeper = Keeper(
        python=Path(sys.executable), warm=None, state_dir=tmp_path, log=tmp_path / "server.log"
    )
    await keeper.start()
    yield keeper
    await keeper.stop()


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[Keeper]:
    """A keeper that has imported PROGRAM."""
    (tmp_path / "slow_program.py").write_text(PROGRAM, encoding="utf-8")
    keeper = Keeper(
        python=Path(sys.executable),
        warm=WarmStart(
            preload=("slow_program",),
            entry="slow_program:main",
            env={"PYTHONPATH": str(tmp_path)},
        ),
        state_dir=tmp_path,
        log=tmp_path / "server.log",
    )
    await keeper.start()
    yield keeper
    await keeper.stop()


def server_pid(handle: LaunchHandle) -> int:
    """The fork server's process id: the parent of the launch's keeper."""
    record = json.loads(handle.status.read_text(encoding="utf-8"))
    process = read_process(record["keeper_pid"])
    assert process is not None
    return process.parent


def read_complete(path: Path) -> str | None:
    """The file's text once its last line is complete."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text if text.endswith("\n") else None


async def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while (process := read_process(pid)) is not None and not process.is_zombie:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def read_pid(path: Path) -> int:
    """The process id that a launched program writes into the file."""
    deadline = time.monotonic() + 10
    while (text := read_complete(path)) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return int(text)


async def test_exit_codes_signals_and_streams_are_recorded(spawn: Keeper, tmp_path: Path) -> None:
    ended = []
    for name, script in (
        ("a", "echo out; exit 0"),
        ("b", "echo e >&2; exit 7"),
        ("c", "kill -9 $$"),
    ):
        handle = await spawn.launch(request(tmp_path, name, "sh", "-c", script))
        ended.append(await keepers.wait(handle, 20))
    assert ended == [
        Exit(exit_code=0, signal=None),
        Exit(exit_code=7, signal=None),
        Exit(exit_code=None, signal=9),
    ]
    assert (tmp_path / "a" / "out").read_text(encoding="utf-8") == "out\n"
    assert (tmp_path / "b" / "err").read_text(encoding="utf-8") == "e\n"


async def test_a_harness_sees_its_environment_and_directory_and_nothing_else(
    spawn: Keeper, tmp_path: Path
) -> None:
    script = (
        "import os; print(sorted(os.environ), os.getcwd(), sorted(os.listdir('/proc/self/fd')))"
    )
    handle = await spawn.launch(request(tmp_path, "a", sys.executable, "-I", "-c", script))
    await keepers.wait(handle, 20)
    shown = (tmp_path / "a" / "out").read_text(encoding="utf-8")
    # LC_CTYPE is set by Python itself; descriptor 3 is the listing's own.
    assert shown == f"['LC_CTYPE', 'ONLY', 'PATH'] {tmp_path}/a/work dir ['0', '1', '2', '3']\n"


async def test_the_warm_program_runs_in_a_fresh_process_with_its_own_exit(
    warm: Keeper, tmp_path: Path
) -> None:
    handle = await warm.launch(request(tmp_path, "a", "prog", "show", "3"))
    assert await keepers.wait(handle, 20) == Exit(exit_code=3, signal=None)
    shown = (tmp_path / "a" / "out").read_text(encoding="utf-8")
    assert shown == f"True {tmp_path}/a/work dir ['ONLY', 'PATH'] ['3']\nexiting\n"
    assert (tmp_path / "a" / "err").read_text(encoding="utf-8") == "to stderr\n"


async def test_a_launch_is_idempotent_by_its_status_file(spawn: Keeper, tmp_path: Path) -> None:
    command = request(tmp_path, "a", "sh", "-c", "echo once >> log; sleep 0.2")
    handles = await asyncio.gather(*(spawn.launch(command) for _ in range(4)))
    assert len(set(handles)) == 1
    await keepers.wait(handles[0], 20)
    assert await spawn.launch(command) == handles[0]
    assert keepers.find(command.status) == handles[0]
    assert (command.cwd / "log").read_text(encoding="utf-8") == "once\n"


async def test_waiting_ends_at_its_time_out(spawn: Keeper, tmp_path: Path) -> None:
    handle = await spawn.launch(request(tmp_path, "a", "sleep", "30"))
    assert await keepers.wait(handle, 0.1) is None
    assert await keepers.kill_group(handle, 0) == Exit(exit_code=None, signal=9)
    assert await keepers.wait(handle, 0) == Exit(exit_code=None, signal=9)


async def test_sigterm_comes_before_sigkill(spawn: Keeper, tmp_path: Path) -> None:
    polite = "trap 'echo bye; exit 5' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    command = request(tmp_path, "a", "sh", "-c", polite)
    handle = await spawn.launch(command)
    await read_pid(command.cwd / "pid")
    assert await keepers.kill_group(handle, 10) == Exit(exit_code=5, signal=None)
    assert command.stdout.read_text(encoding="utf-8") == "bye\n"


async def test_kill_ends_descendants_that_ignore_sigterm_and_left_the_session(
    spawn: Keeper, tmp_path: Path
) -> None:
    endless = 'trap "" TERM; echo $$ > pid; while :; do sleep 0.05; done'
    daemon = f"trap '' TERM; setsid sh -c '{endless}' & wait"
    command = request(tmp_path, "a", "sh", "-c", daemon)
    handle = await spawn.launch(command)
    daemon_pid = await read_pid(command.cwd / "pid")
    assert await keepers.kill_group(handle, 0.1) == Exit(exit_code=None, signal=9)
    await until_gone(daemon_pid)


async def test_what_outlives_the_harness_is_ended_too(spawn: Keeper, tmp_path: Path) -> None:
    script = (
        "(setsid sh -c 'echo $$ > pid; exec sleep 60' &) ; while [ ! -s pid ]; do sleep 0.02; done"
    )
    command = request(tmp_path, "a", "sh", "-c", script)
    handle = await spawn.launch(command)
    assert await keepers.wait(handle, 20) == Exit(exit_code=0, signal=None)
    daemon_pid = await read_pid(command.cwd / "pid")
    assert read_process(daemon_pid) is not None
    assert await keepers.kill_group(handle, 0) == Exit(exit_code=0, signal=None)
    await until_gone(daemon_pid)


async def test_an_exit_is_recorded_though_the_server_was_killed(
    spawn: Keeper, tmp_path: Path
) -> None:
    handle = await spawn.launch(request(tmp_path, "a", "sh", "-c", "sleep 0.5; exit 4"))
    os.kill(server_pid(handle), signal.SIGKILL)
    assert await keepers.wait(handle, 20) == Exit(exit_code=4, signal=None)
    again = await spawn.launch(request(tmp_path, "b", "true"))  # a new server is started
    assert await keepers.wait(again, 20) == Exit(exit_code=0, signal=None)


async def test_a_harness_whose_keeper_died_has_vanished(spawn: Keeper, tmp_path: Path) -> None:
    handle = await spawn.launch(request(tmp_path, "a", "sleep", "60"))
    record = json.loads(handle.status.read_text(encoding="utf-8"))
    os.kill(record["keeper_pid"], signal.SIGKILL)
    with pytest.raises(HarnessVanished):
        await keepers.wait(handle, 20)
    assert await keepers.kill_group(handle, 0) is None
    assert not is_alive(handle.pid, handle.start_time)


async def test_another_runner_finds_the_server_and_the_launch(
    spawn: Keeper, tmp_path: Path
) -> None:
    command = request(tmp_path, "a", "sh", "-c", "sleep 0.5; exit 6")
    handle = await spawn.launch(command)
    script = (
        "import asyncio, sys; from pathlib import Path; from gyre.runner import keeper as k\n"
        "async def main():\n"
        "    keeper = k.Keeper(python=Path(sys.executable), warm=None, state_dir=Path(sys.argv[1]),"
        " log=Path(sys.argv[1]) / 'other.log')\n"
        "    await keeper.start()\n"
        "    print((await k.wait(k.find(Path(sys.argv[2])), 20)).exit_code)\n"
        "asyncio.run(main())"
    )
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), str(command.status), stdout=subprocess.PIPE
    )
    shown, _ = await asyncio.wait_for(other.communicate(), 60)
    assert (shown, other.returncode) == (b"6\n", 0)
    assert not (tmp_path / "other.log").exists()
    assert await keepers.wait(handle, 0) == Exit(exit_code=6, signal=None)


async def test_a_launch_that_cannot_be_is_one_clear_error(spawn: Keeper, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="no program 'no-such-program'"):
        await spawn.launch(request(tmp_path, "a", "no-such-program"))
    assert keepers.find(tmp_path / "a" / "status.json") is None


async def test_limits_hold_for_the_harness(spawn: Keeper, tmp_path: Path) -> None:
    command = request(tmp_path, "a", "sh", "-c", "ulimit -n; ulimit -c", limits={"NOFILE": 64})
    await keepers.wait(await spawn.launch(command), 20)
    assert command.stdout.read_text(encoding="utf-8") == "64\n0\n"


async def test_an_idle_server_ends_and_the_next_launch_starts_another(tmp_path: Path) -> None:
    keeper = Keeper(
        python=Path(sys.executable), warm=None, state_dir=tmp_path, log=tmp_path / "log", idle_s=0.2
    )
    await keeper.start()
    first = await keeper.launch(request(tmp_path, "a", "sleep", "0.5"))
    server = server_pid(first)
    assert await keepers.wait(first, 20) == Exit(exit_code=0, signal=None)
    await until_gone(server)
    again = await keeper.launch(request(tmp_path, "b", "true"))
    assert await keepers.wait(again, 20) == Exit(exit_code=0, signal=None)
    await keeper.stop()


async def test_no_zombies_and_no_descriptors_pile_up_in_the_server(
    spawn: Keeper, tmp_path: Path
) -> None:
    first = await spawn.launch(request(tmp_path, "first", "sleep", "30"))
    server = server_pid(first)
    # Behind an answer the server still closes what it was asked through.
    samples = [await _descriptors_after(server, 0.02) for _ in range(15)]
    before = min(samples)
    for index in range(10):
        handle = await spawn.launch(request(tmp_path, str(index), "true"))
        assert await keepers.wait(handle, 20) == Exit(exit_code=0, signal=None)
        await keepers.kill_group(handle, 0)
    deadline = time.monotonic() + 10
    while len(children := [p for p in list_processes() if p.parent == server]) > 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert len(children) == 1  # the first launch's keeper
    while await _descriptors_after(server, 0.02) != before:
        assert time.monotonic() < deadline
    await keepers.kill_group(first, 0)


async def _descriptors_after(server: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return len(os.listdir(f"/proc/{server}/fd"))
