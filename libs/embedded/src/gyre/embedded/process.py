"""One process of the stack: what it is, and how it is started so that it cannot be orphaned."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ReadyCheck = Callable[[], bool]

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
# Loaded before any fork: between fork and exec only async-signal-safe work is sound.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

# A log that has grown past this is set aside once, when its process starts again.
MAX_LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to run one process.

    ready          polled after the start until true; never blocks for long. None: ready at once.
    oneshot        runs to exit status 0 and is not restarted; ready means finished.
    stop_signal    asks it to end; after `stop_grace_s` its whole group is killed.
    death_signal   what the kernel sends it when the supervisor dies.
    user           run as this OS user (the supervisor is root then); None: as the supervisor.
    pass_fds       file descriptors of the supervisor that the process inherits under their number.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: ReadyCheck | None = None
    oneshot: bool = False
    ready_timeout_s: float = 180.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0
    death_signal: signal.Signals = signal.SIGKILL
    user: str | None = None
    pass_fds: tuple[int, ...] = ()
    cwd: Path | None = None


def become_subreaper() -> None:
    """Make orphans among this process's descendants its children instead of init's.

    So a stack's supervisor can find and end whatever its services left running.
    """
    if _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def spawn(spec: ProcessSpec, log: Path) -> subprocess.Popen[bytes]:
    """Start `spec` in a session of its own, output appended to `log`.

    Call it from the main thread only: the kernel's parent-death signal is tied to the thread that
    forked. Raises OSError when the program cannot be started.
    """
    parent = os.getpid()
    death_signal = int(spec.death_signal)

    def tie_to_parent() -> None:
        # Runs in the child after it took its user: a change of user clears the setting.
        _LIBC.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the setting took hold
            os._exit(1)

    _set_aside(log)
    with log.open("ab") as output:
        return subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(spec.env),
            cwd=spec.cwd,
            start_new_session=True,
            pass_fds=spec.pass_fds,
            # Sound here: the supervisor has one thread, and the hook only makes system calls.
            preexec_fn=tie_to_parent,  # noqa: PLW1509
            **user_options(spec.user),
        )


def user_options(user: str | None) -> dict[str, Any]:
    """Keyword arguments of `subprocess` that run a program as `user` with its own group alone."""
    if user is None:
        return {}
    import pwd

    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def describe_exit(returncode: int) -> str:
    """An exit status in words: `exit status 2`, `signal SIGKILL`."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def last_line(log: Path, limit_bytes: int = 4096) -> str:
    """The last line with text in `log`, for an error message; empty if there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit_bytes))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _set_aside(log: Path) -> None:
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size > MAX_LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
