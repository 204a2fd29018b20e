"""Starts the engine that the contract suite runs against, as a process of its own.

`local` always. The real SGLang too when GYRE_SGLANG_PYTHON names the interpreter of its
environment and GYRE_SGLANG_LAUNCHER a script that takes SGLang's arguments.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gyre.testkit.tiny_model import make_tiny_model

CONTEXT_TOKENS = 2048
START_TIMEOUT_S = {"local": 60.0, "sglang": 300.0}
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine that serves `models[0]` as version `w0`; `models[1]` has the same sizes."""

    kind: str
    url: str
    models: tuple[Path, Path]
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(timeout=10)


def engine_kinds() -> list[str]:
    """Which engines this machine can run."""
    return ["local", "sglang"] if os.environ.get("GYRE_SGLANG_PYTHON") else ["local"]


@pytest.fixture(scope="module", params=engine_kinds())
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """One engine process for the tests of a module."""
    root = tmp_path_factory.mktemp("engine")
    models = make_tiny_model(root / "m0", seed=0), make_tiny_model(root / "m1", seed=1)
    with running_engine(request.param, models, root / "engine.log") as server:
        yield server


@contextmanager
def running_engine(
    kind: str, models: tuple[Path, Path], log: Path, *extra: str, migration_key: str = ""
) -> Iterator[RunningEngine]:
    """Start, wait until healthy, end with the block; the log is shown when it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*_command(kind), "--model-path", str(models[0]), "--port", str(port)]
    command += ["--context-length", str(CONTEXT_TOKENS), "--weight-version", "w0", *extra]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "GYRE_MIGRATION_KEY": migration_key,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        _wait_healthy(process, url, time.monotonic() + START_TIMEOUT_S[kind], log)
        yield RunningEngine(kind=kind, url=url, models=models, process=process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def _command(kind: str) -> list[str]:
    if kind == "local":
        return [sys.executable, "-m", "gyre.cell_agent.engine.local"]
    cpu = "--device cpu --attention-backend torch_native --mem-fraction-static 0.05"
    return [
        os.environ["GYRE_SGLANG_PYTHON"],
        os.environ["GYRE_SGLANG_LAUNCHER"],
        *cpu.split(),
        *["--max-total-tokens", "16384", "--dtype", "float32", "--enable-metrics"],
    ]


def _wait_healthy(process: subprocess.Popen[bytes], url: str, deadline: float, log: Path) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(POLL_S)
    raise AssertionError(f"the engine did not start: {log.read_text(errors='replace')[-2000:]}")
