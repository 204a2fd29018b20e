#!/usr/bin/env python3
"""Set-up of a checkout: environments from pinned requirements, the project's packages editable.

    scripts/setup.py

Heavy environments lie in a cache outside the checkout, each under a fingerprint of its requirements
and of the Python that made it, so that a second clone does not pay again:

    <cache>/env-<fingerprint>            what the project imports (requirements/third-party.txt)
    <cache>/harness-llm-<fingerprint>    the quickstart's agent program, alone
                                         (others on demand: scripts/harness.py, scripts/sglang.py)
    <cache>/rdma-<fingerprint>           what Mooncake is linked to, where the system lacks it
    .venv                                this checkout's packages, on top of the first one
    .venv/gyre-env.json                  where those are that .venv does not reach by itself

The cache is $GYRE_CACHE, else /var/cache/gyre for root and ~/.cache/gyre for anybody else. An
environment counts once its `.complete` file is written; an unfinished one is made anew. Needs
Python 3.11 and a way for pip to reach an index; pip's own settings and variables apply.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from verbs import VerbsError, verbs_directory

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
VENV = ROOT / ".venv"
PYTHON = (3, 11)
SITE_PACKAGES = Path("lib") / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"
MARKER = ".complete"
HEARTBEAT_S = 20.0
BUILD_TIMEOUT_S = 3600.0


class SetupError(Exception):
    """Set-up cannot go on. The message is one line that names the mend."""


def main() -> int:
    _use_right_python()
    os.umask(0o022)  # under root, Postgres' own user must be able to read the cache
    started = time.monotonic()
    try:
        cache = cache_directory()
        shared = cached_environment(
            cache,
            "env",
            [REQUIREMENTS / "third-party.txt"],
            constraints=REQUIREMENTS / "constraints.txt",
        )
        llm = cached_environment(cache, "harness-llm", [REQUIREMENTS / "harness-llm.txt"])
        known = {"harness_llm_python": str(llm / "bin" / "python")}
        checkout_environment(shared, known | rdma_libraries(cache))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    say(f"ready in {time.monotonic() - started:.0f} s: .venv/bin/python")
    return 0


def cache_directory() -> Path:
    """Where environments are shared between checkouts; made if it is not there."""
    root = os.geteuid() == 0
    default = Path("/var/cache/gyre") if root else Path.home() / ".cache" / "gyre"
    cache = Path(os.environ.get("GYRE_CACHE") or default).expanduser().absolute()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot make the cache {cache} ({error}): set GYRE_CACHE") from error
    closed = [p for p in (cache, *cache.parents) if not p.stat().st_mode & stat.S_IXOTH]
    if root and closed and not os.environ.get("GYRE_DATABASE_URL"):
        raise SetupError(
            f"{closed[0]} may not be entered by others, so Postgres (which does not run as root)"
            " could not start from there: set GYRE_CACHE to a world-readable place"
        )
    return cache


def cached_environment(
    cache: Path,
    name: str,
    requirements: Sequence[Path],
    *,
    constraints: Path | None = None,
    bare: Path | None = None,
) -> Path:
    """The environment of these requirements, made if it is not in the cache yet. bare: what comes
    after them, without what it asks for."""
    files = [*requirements, *(path for path in (constraints, bare) if path is not None)]
    directory = cache / f"{name}-{fingerprint(files)}"
    marker = directory / MARKER
    with lock(cache / f"{directory.name}.lock", f"another set-up makes {name}: waiting"):
        if marker.exists():
            say(f"{name}: cached")
            return directory
        say(f"{name}: installing {', '.join(path.name for path in requirements)}")
        shutil.rmtree(directory, ignore_errors=True)
        make_venv(directory, with_pip=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install"]
        pip += ["--disable-pip-version-check", "--no-input"]
        command = list(pip)
        for path in requirements:
            command += ["-r", str(path)]
        if constraints is not None:
            command += ["-c", str(constraints)]
        run_pip(command, cache / f"{directory.name}.log")
        if bare is not None:
            log = cache / f"{directory.name}-bare.log"
            run_pip([*pip, "--no-deps", "-r", str(bare)], log)
        marker.write_text(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
    return directory


def rdma_libraries(cache: Path) -> dict[str, str]:
    """Where the libraries are that Mooncake is linked to; nothing where the system has its own, and
    nothing but a line on the terminal where they are not to be had: only Mooncake needs them."""
    try:
        directory = verbs_directory(cache)
    except VerbsError as error:
        say(f"mooncake: {error}")
        return {}
    return {} if directory is None else {"rdma_libraries": str(directory)}


def checkout_environment(shared: Path, found: dict[str, str]) -> None:
    """`.venv`: the shared packages through a path file, the project's own as editable installs."""
    projects = sorted(ROOT.glob("libs/*/pyproject.toml")) + sorted(
        ROOT.glob("services/*/pyproject.toml")
    )
    # The checkout's own place belongs to it: neither kind of install can be moved.
    wanted = f"{shared} {ROOT} " + fingerprint([*projects, REQUIREMENTS / "dev.txt"])
    marker = VENV / MARKER
    environments = VENV / "gyre-env.json"
    with lock(ROOT / ".venv.lock", "another set-up of this checkout runs: waiting"):
        on_demand = json.loads(environments.read_text()) if environments.exists() else {}
        known = {name: path for name, path in on_demand.items() if Path(path).exists()}
        if marker.exists() and marker.read_text() == wanted:
            say(f"checkout: {len(projects)} packages are installed")
        else:
            say(f"checkout: installing {len(projects)} packages editable")
            shutil.rmtree(VENV, ignore_errors=True)
            make_venv(VENV, with_pip=False)
            (VENV / SITE_PACKAGES / "gyre-shared.pth").write_text(f"{shared / SITE_PACKAGES}\n")
            command = [str(shared / "bin" / "python"), "-m", "pip"]
            command += ["--python", str(VENV / "bin" / "python"), "install", "--no-index"]
            command += ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
            command += ["-r", str(REQUIREMENTS / "dev.txt")]
            run_pip(command, VENV / "install.log")
            marker.write_text(wanted)
        environments.write_text(json.dumps(known | found, indent=1) + "\n")


def remember(environments: Path, key: str, path: Path) -> None:
    """Adds where something was installed on demand to what `environments` says."""
    with lock(environments.with_name("gyre-env.lock"), "another set-up runs: waiting"):
        known = json.loads(environments.read_text()) if environments.exists() else {}
        known[key] = str(path)
        environments.write_text(json.dumps(known, indent=1) + "\n")


def fingerprint(files: Sequence[Path]) -> str:
    """Sixteen hex digits that change with the files and with this Python."""
    digest = hashlib.sha256()
    for part in (sys.version, sys.base_prefix, platform.machine()):
        digest.update(part.encode() + b"\0")
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def make_venv(directory: Path, *, with_pip: bool) -> None:
    """A virtual environment of the Python that runs this script, at its final place."""
    base = Path(sys.base_prefix) / "bin" / f"python{PYTHON[0]}.{PYTHON[1]}"
    python = str(base) if base.exists() else sys.executable
    command = [python, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip().splitlines()
        raise SetupError(
            f"{python} cannot make a virtual environment: {said[-1] if said else 'no output'}"
            " (on Debian: install python3.11-venv)"
        )


def run_pip(command: Sequence[str], log: Path) -> None:
    """Run pip with its output in `log`."""
    run_logged(command, log, name="pip", mark="ERROR")


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    cwd: Path = ROOT,
    name: str = "npm",
    mark: str = "npm error",
) -> None:
    """Run an installer with its output in `log`, and a sign of life on the terminal. mark: how the
    lines begin that say what went wrong."""
    started = last_sign = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1.0)
                    break
                now = time.monotonic()
                if now - started > BUILD_TIMEOUT_S:
                    raise SetupError(f"{name} did not end in {BUILD_TIMEOUT_S:.0f} s: see {log}")
                if now - last_sign > HEARTBEAT_S:
                    last_sign = now
                    say(f"  {now - started:.0f} s, {_progress(log)}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith(mark)] or lines[-1:]
        raise SetupError(f"{name} failed: {errors[-1] if errors else 'no output'} (see {log})")


@contextlib.contextmanager
def lock(path: Path, message: str) -> Iterator[None]:
    """Hold `path` exclusively; the kernel frees it when this process ends in any way."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(message)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


def _progress(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    if any(line.startswith("Installing collected packages") for line in lines):
        return "installing"
    return f"{sum(line.startswith('Collecting') for line in lines)} packages collected"


def _use_right_python() -> None:
    """Start again under Python 3.11 where another one runs this."""
    if sys.version_info[:2] == PYTHON:
        return
    name = f"python{PYTHON[0]}.{PYTHON[1]}"
    found = shutil.which(name)
    if found is None or os.environ.get("GYRE_SETUP_PYTHON"):
        print(f"setup: needs {name}, this is {platform.python_version()}", file=sys.stderr)
        sys.exit(1)
    os.environ["GYRE_SETUP_PYTHON"] = found
    os.execv(found, [found, *sys.argv])


if __name__ == "__main__":
    sys.exit(main())
