"""Starting, stopping and looking at a stack, from outside of it.

`up` holds `run/up.lock` while it starts a stack, so that of several at once one starts it and the
others find it running. `down` takes no lock: it may cut a start short.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.embedded import postgres
from gyre.embedded.errors import EmbeddedError, StackFailed, StackMismatch
from gyre.embedded.identity import ProcessIdentity, kill_leftovers
from gyre.embedded.paths import StackPaths, read_json
from gyre.embedded.process import last_line

POLL_INTERVAL_S = 0.1
KILL_TIMEOUT_S = 10.0
STANDARD_STACK = "gyre.embedded.stack:standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process of a stack. state: waiting, starting, ready, restarting, held (it was stopped
    alone), finished, stopped."""

    name: str
    state: str
    pid: int | None
    started: float | None
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackInfo:
    """How to reach a running stack. urls: scheduler, proxy, nats, database. ports: by name."""

    home: Path
    cells: int
    urls: Mapping[str, str]
    ports: Mapping[str, int]
    token: str

    def __repr__(self) -> str:
        return f"StackInfo(home={str(self.home)!r}, cells={self.cells})"


Progress = Callable[[Sequence[ProcessStatus]], None]


def up(
    home: Path | str,
    *,
    cells: int = 3,
    environ: Mapping[str, str] | None = None,
    owner: int | None = None,
    stack: str = STANDARD_STACK,
    timeout_s: float = 300.0,
    on_progress: Progress | None = None,
) -> StackInfo:
    """Start the stack of `home`, or find it running, and wait until it is ready.

    environ   settings for every process (default: this process's environment)
    owner     a process id: the stack stops by itself when that process is gone
    stack     `module:function` that makes the plan
    Raises StackFailed (a process cannot start, or the deadline passed: nothing is left running) and
    StackMismatch (it runs with another number of cells).
    """
    if not sys.platform.startswith("linux"):
        raise EmbeddedError("the embedded stack runs on Linux: use docker-compose.yml elsewhere")
    paths = StackPaths.of(home)
    paths.create()
    deadline = time.monotonic() + timeout_s
    with _locked(paths.up_lock, deadline):
        supervisor = _running_supervisor(paths, deadline)
        if supervisor is None:
            _clear_remains(paths)
            supervisor = _launch(paths, cells, environ, owner, stack)
        try:
            return _await_ready(paths, supervisor, cells, deadline, on_progress)
        except TimeoutError as error:
            waiting = [s.name for s in status(home) if s.state not in ("ready", "finished")]
            down(home)
            raise StackFailed(
                f"not ready after {timeout_s:.0f} s: {', '.join(waiting) or 'servers'}"
                f" (see {paths.logs})"
            ) from error


def attach(home: Path | str) -> StackInfo | None:
    """The stack that is ready in `home`, or None."""
    paths = StackPaths.of(home)
    state = read_json(paths.stack)
    if state is None or state["state"] != "ready" or not _is_alive(state["supervisor"]):
        return None
    return _info(paths, state)


def status(home: Path | str) -> list[ProcessStatus]:
    """The processes of the stack in `home`, the supervisor first; empty if it is not running."""
    state = read_json(StackPaths.of(home).stack)
    if state is None or not _is_alive(state["supervisor"]):
        return []
    rows = [{"name": "supervisor", "state": state["state"], "restarts": 0}]
    rows[0]["identity"] = state["supervisor"]
    return [_process_status(row) for row in [*rows, *state.get("processes", [])]]


def down(home: Path | str, *, timeout_s: float = 60.0, purge: bool = False) -> bool:
    """Stop the stack of `home` and everything that it started. Returns whether one was running.

    purge   also delete its state: `home` and its database.
    After `timeout_s` everything is killed.
    """
    paths = StackPaths.of(home)
    state = read_json(paths.stack)
    supervisor = _identity(state["supervisor"]) if state else None
    was_running = supervisor is not None and supervisor.is_alive()
    if supervisor is not None and was_running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGTERM)
            if not supervisor.wait(timeout_s):
                os.kill(supervisor.pid, signal.SIGKILL)
                supervisor.wait(KILL_TIMEOUT_S)
    left = _clear_remains(paths)
    if purge:
        postgres.remove(postgres.locate(paths.home))
        shutil.rmtree(paths.home, ignore_errors=True)
    return was_running or bool(left)


def stop_process(
    home: Path | str,
    name: str,
    *,
    sig: signal.Signals = signal.SIGTERM,
    timeout_s: float = 30.0,
) -> None:
    """End one process of the stack in `home` and keep it from starting again until `start_process`
    or the stack's next start. Raises EmbeddedError: no such process, or it did not end."""
    row = _row(home, name)
    StackPaths.of(home).held(name).touch()
    if row.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(row.pid, sig)
    deadline = time.monotonic() + timeout_s
    while _row(home, name).state != "held":
        if time.monotonic() > deadline:
            raise EmbeddedError(f"{name} has not ended after {timeout_s:.0f} s")
        time.sleep(POLL_INTERVAL_S)


def start_process(home: Path | str, name: str) -> None:
    """Undo `stop_process`. Raises EmbeddedError: no such process."""
    _row(home, name)
    StackPaths.of(home).held(name).unlink(missing_ok=True)


def _row(home: Path | str, name: str) -> ProcessStatus:
    rows = [row for row in status(home) if row.name != "supervisor"]
    if not rows:
        raise EmbeddedError(f"no stack runs in {home}: start one with `gyre up`")
    for row in rows:
        if row.name == name:
            return row
    raise EmbeddedError(f"no process {name!r}; there are {', '.join(row.name for row in rows)}")


def _launch(
    paths: StackPaths,
    cells: int,
    environ: Mapping[str, str] | None,
    owner: int | None,
    stack: str,
) -> ProcessIdentity:
    """Start the supervisor as a daemon: it forks away, so it is nobody's child to wait for."""
    command = [sys.executable, "-m", "gyre.embedded", "--home", str(paths.home)]
    command += ["--cells", str(cells), "--stack", stack]
    if owner is not None:
        command += ["--owner", str(owner)]
    launched = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ if environ is None else environ),
        check=False,
    )
    pid = launched.stdout.strip()
    identity = ProcessIdentity.of(int(pid)) if pid.isdigit() else None
    if identity is None:
        said = launched.stderr.strip().splitlines() or [last_line(paths.log("supervisor"))]
        raise StackFailed(f"the supervisor did not start: {said[-1]}")
    return identity


def _await_ready(
    paths: StackPaths,
    supervisor: ProcessIdentity,
    cells: int,
    deadline: float,
    on_progress: Progress | None,
) -> StackInfo:
    shown: list[ProcessStatus] = []
    while time.monotonic() < deadline:
        alive = supervisor.is_alive()  # asked before the state is read: a last word is not missed
        state = read_json(paths.stack) or {"state": "starting"}
        if state["state"] in ("stopping", "stopped", "failed") or not alive:
            if alive:
                time.sleep(POLL_INTERVAL_S)
                continue
            raise StackFailed(state.get("error") or _last_words(paths, state["state"]))
        if state["state"] == "ready":
            if state["cells"] != cells:
                raise StackMismatch(
                    f"a stack with {state['cells']} cells runs in {paths.home}, not {cells}:"
                    " stop it first (gyre down)"
                )
            return _info(paths, state)
        if on_progress is not None and (rows := status(paths.home)) != shown:
            on_progress(rows)
            shown = rows
        time.sleep(POLL_INTERVAL_S)
    raise TimeoutError


def _last_words(paths: StackPaths, state: str) -> str:
    if state in ("stopping", "stopped"):
        return "the stack was stopped while it started"
    log = paths.log("supervisor")
    return f"the supervisor ended: {last_line(log)} (see {log})"


def _running_supervisor(paths: StackPaths, deadline: float) -> ProcessIdentity | None:
    """The living supervisor; one that is just stopping is waited for and counts as gone."""
    while (state := read_json(paths.stack)) is not None:
        identity = _identity(state["supervisor"])
        if not identity.is_alive():
            return None
        if state["state"] in ("starting", "ready"):
            return identity
        if time.monotonic() > deadline:
            raise StackFailed(f"the last stack is still stopping: see {paths.log('supervisor')}")
        time.sleep(POLL_INTERVAL_S)
    return None


def _clear_remains(paths: StackPaths) -> list[int]:
    """Kill processes of a stack whose supervisor is dead, and forget its published state."""
    for held in paths.run.glob("*.held"):
        held.unlink()
    state = read_json(paths.stack)
    if state is None:
        return []
    rows = [row["identity"] for row in state.get("processes", []) if row["identity"]]
    left = kill_leftovers([_identity(row) for row in rows], KILL_TIMEOUT_S)
    paths.stack.unlink(missing_ok=True)
    return left


@contextlib.contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StackFailed("another `gyre up` here does not come to its end") from None
                time.sleep(POLL_INTERVAL_S)
        yield


def _info(paths: StackPaths, state: Mapping[str, Any]) -> StackInfo:
    stored = read_json(paths.secrets)
    if stored is None:
        raise EmbeddedError(f"{paths.secrets} is gone: stop the stack and start it again")
    return StackInfo(
        home=paths.home,
        cells=state["cells"],
        urls=state["urls"],
        ports=state["ports"],
        token=stored["api_token"],
    )


def _process_status(row: Mapping[str, Any]) -> ProcessStatus:
    identity = row["identity"]
    return ProcessStatus(
        name=row["name"],
        state=row["state"],
        pid=identity["pid"] if identity else None,
        started=identity["started"] if identity else None,
        restarts=row["restarts"],
    )


def _identity(value: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(pid=value["pid"], started=value["started"])


def _is_alive(value: Mapping[str, Any]) -> bool:
    return _identity(value).is_alive()
