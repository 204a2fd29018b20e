#!/usr/bin/env python3
"""Installs an agent program on demand, unmodified and pinned, into the cache of `setup.py`.

    scripts/harness.py claude-code | codex | mini-swe-agent ...

    <cache>/harness-<name>-<fingerprint>    the program, alone
    .venv/gyre-env.json                     gets the path that the runner's profile starts

They are large and only some jobs and tests need them, so set-up does not make them. From npm what
requirements/harness-<name>/ locks is installed, its scripts are not run; from PyPI what
requirements/harness-<name>.txt pins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from setup import (
    MARKER,
    REQUIREMENTS,
    VENV,
    SetupError,
    cache_directory,
    cached_environment,
    fingerprint,
    lock,
    remember,
    run_logged,
    say,
)

# The native program of this machine; npm installs no other's.
NPM_PROGRAMS = {
    "claude-code": "node_modules/@anthropic-ai/claude-code-*/claude",
    "codex": "node_modules/@openai/codex-*/vendor/*/bin/codex",
}
PIP_HARNESSES = ("mini-swe-agent",)


def main(names: Sequence[str]) -> int:
    known = (*NPM_PROGRAMS, *PIP_HARNESSES)
    if not names or not set(names) <= set(known):
        print(f"harness: name one or more of {', '.join(known)}", file=sys.stderr)
        return 2
    os.umask(0o022)
    try:
        if not VENV.is_dir():
            raise SetupError("no environment in this checkout yet: make setup")
        cache = cache_directory()
        for name in names:
            register(name, install(cache, name))
    except SetupError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    return 0


def install(cache: Path, name: str) -> Path:
    """What the runner starts: a native program, or the Python of the program's environment."""
    if name in PIP_HARNESSES:
        requirements = REQUIREMENTS / f"harness-{name}.txt"
        return cached_environment(cache, f"harness-{name}", [requirements]) / "bin" / "python"
    directory = npm_environment(cache, f"harness-{name}", REQUIREMENTS / f"harness-{name}")
    found = sorted(directory.glob(NPM_PROGRAMS[name]))
    if len(found) != 1:
        raise SetupError(f"{name}: npm has no program for this machine (see {directory})")
    return found[0]


def npm_environment(cache: Path, name: str, locked: Path) -> Path:
    """The npm packages of `locked`'s lock file, installed if they are not in the cache yet."""
    files = [locked / "package.json", locked / "package-lock.json"]
    directory = cache / f"{name}-{fingerprint(files)}"
    marker = directory / MARKER
    with lock(cache / f"{directory.name}.lock", f"another set-up makes {name}: waiting"):
        if marker.exists():
            say(f"{name}: cached")
            return directory
        npm = shutil.which("npm")
        if npm is None:
            raise SetupError(f"{name}: needs npm to be installed from its registry")
        say(f"{name}: installing {locked.name} with npm")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for path in files:
            shutil.copy(path, directory)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        run_logged(command, cache / f"{directory.name}.log", cwd=directory)
        marker.write_text(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
    return directory


def register(name: str, path: Path) -> None:
    """Tells the runner, beside what it was told before."""
    try:
        result = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{name}: {path} does not start: {error}") from error
    if result.returncode != 0:
        raise SetupError(f"{name}: {path} does not start: {result.stderr.strip()[-200:]}")
    kind = "python" if name in PIP_HARNESSES else "program"
    remember(VENV / "gyre-env.json", f"harness_{name}_{kind}", path)
    say(f"{name}: ready, {result.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
