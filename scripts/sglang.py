#!/usr/bin/env python3
"""Installs SGLang, pinned, into the cache of `setup.py`: to serve small models on a CPU.

    scripts/sglang.py [--python PATH] [--notes FILE]     (`gyre engines install sglang` runs it)

    <cache>/sglang-<fingerprint>    SGLang, alone
    FILE                            gets the path of its Python, or PATH, which has SGLang already

FILE is .venv/gyre-env.json where none is named. Agents look for it in their own environment, which
need not be this checkout's: `gyre engines install` names that of the Python it runs under.

It takes 3 GB and minutes, so set-up does not make it. What its packages ask for and a CPU does not
need is left out; `gyre.cell_agent.engine.sglang` stands in for the two pieces that are missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from setup import (
    REQUIREMENTS,
    ROOT,
    VENV,
    SetupError,
    cache_directory,
    cached_environment,
    remember,
    say,
)

KEY = "engine_sglang_python"
LAUNCHER = ROOT / "services/cell-agent/src/gyre/cell_agent/engine/sglang/cpu/serve.py"
# As the launcher imports it, which makes up for what a CPU lacks.
CHECK = "import runpy, sys; kept = runpy.run_path(sys.argv[1]); import sglang; "
CHECK += "print(sglang.__version__)"
# A first import compiles a thousand files.
CHECK_TIMEOUT_S = 300.0


def main() -> int:
    os.umask(0o022)
    try:
        told = options()
        if not told.notes.parent.is_dir():
            raise SetupError(_without_environment(told.notes.parent))
        python = install(cache_directory()) if told.python is None else told.python.absolute()
        version = check(python)
        remember(told.notes, KEY, python)
    except SetupError as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    say(f"sglang: ready, {version}")
    return 0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang")
    parser.add_argument("--python", type=Path, help="of an environment that has SGLang already")
    parser.add_argument(
        "--notes",
        type=Path,
        default=VENV / "gyre-env.json",
        help="gyre-env.json of the environment whose agents are to find it",
    )
    return parser.parse_args()


def _without_environment(directory: Path) -> str:
    if directory == VENV:
        return "no environment in this checkout yet: make setup"
    return f"--notes: there is no directory {directory}"


def install(cache: Path) -> Path:
    """The Python that starts it."""
    directory = cached_environment(
        cache,
        "sglang",
        [REQUIREMENTS / "sglang.txt"],
        bare=REQUIREMENTS / "sglang-bare.txt",
    )
    return directory / "bin" / "python"


def check(python: Path) -> str:
    """SGLang's version, by itself. Raises SetupError when it cannot be imported."""
    command = [str(python), "-c", CHECK, str(LAUNCHER)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise SetupError(f"{python} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{python} took {CHECK_TIMEOUT_S:.0f} s to import it") from error
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise SetupError(f"{python} cannot import it: {said[-1] if said else 'no output'}")
    return result.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
