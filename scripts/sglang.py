#!/usr/bin/env python3
"""Installs SGLang, pinned, into the cache of `setup.py`: to serve small models on a CPU.

    scripts/sglang.py

    <cache>/sglang-<fingerprint>    SGLang, alone
    .venv/gyre-env.json             gets the path of its Python

It takes 3 GB and minutes, so set-up does not make it. What its packages ask for and a CPU does not
need is left out; `gyre.cell_agent.engine.sglang` stands in for the two pieces that are missed.
"""

from __future__ import annotations

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
        if not VENV.is_dir():
            raise SetupError("no environment in this checkout yet: make setup")
        python = install(cache_directory())
        version = check(python)
        remember(VENV / "gyre-env.json", KEY, python)
    except SetupError as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    say(f"sglang: ready, {version}")
    return 0


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
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise SetupError(f"{python} cannot import it: {said[-1] if said else 'no output'}")
    return result.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
