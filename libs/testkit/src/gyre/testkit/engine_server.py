"""Starts an engine as a process of its own, as the agent starts one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.launch import (
    START_TIMEOUT_S,
    EngineKind,
    EngineLaunch,
    client_of,
    command_of,
)
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.contracts.engine_job import SGLANG_RESERVED_TOKENS
from gyre.testkit.nats_server import free_port

CONTEXT_TOKENS = 2048
# The agent's, but `local` has less than any test has: its log is shown before pytest ends the test.
BOOT_LIMIT_S = {**START_TIMEOUT_S, "local": 60.0}
POLL_S = 0.1
# What a call may have of SGLang's CONTEXT_TOKENS.
SERVED_TOKENS = CONTEXT_TOKENS - SGLANG_RESERVED_TOKENS
MAX_RUNNING = 16
LONG_TOKENS = {"local": 1900, "sglang": 800}
"""Of a call that still runs when something is done to it, and then ends; SGLang is slower."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine that serves `models[0]` as version `w0`; `models[1]` has the same sizes."""

    launch: EngineLaunch
    port: int
    models: tuple[Path, Path]
    process: subprocess.Popen[bytes]

    @property
    def kind(self) -> EngineKind:
        return self.launch.kind

    @property
    def url(self) -> str:
        return f"http://{self.launch.host}:{self.port}"

    @property
    def long_tokens(self) -> int:
        return LONG_TOKENS[self.kind]

    def long_sampling(self) -> dict[str, Any]:
        """Parameters of a call that ends at `long_tokens`."""
        return {"temperature": 1.0, "max_new_tokens": self.long_tokens, "ignore_eos": True}

    def client(self) -> EngineClient:
        """As the agent makes it for an engine of this kind."""
        return client_of(self.launch, self.port)

    def kill(self) -> None:
        """SIGKILL, to all its processes."""
        _end(self.process, signal.SIGKILL)


@contextmanager
def running_engine(
    kind: EngineKind, models: tuple[Path, Path], log: Path, *extra: str, migration_key: str = ""
) -> Iterator[RunningEngine]:
    """Start, wait until healthy, end with the block; the log is shown when it does not start."""
    port = free_port()
    launch = engine_launch(kind, models[0], migration_key)
    command, environment = command_of(launch, port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *extra],
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, which takes no lock
        )
    try:
        running = RunningEngine(launch=launch, port=port, models=models, process=process)
        _wait_healthy(process, running.url, time.monotonic() + BOOT_LIMIT_S[kind], log)
        yield running
    finally:
        if process.poll() is None:
            _end(process, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """With its children; SIGKILL if the signal does not end it in 10 s."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def die_with_parent() -> None:
    """The kernel ends the engine when the tests are killed; SGLang's other processes follow it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def engine_launch(kind: EngineKind, model: Path, migration_key: str = "") -> EngineLaunch:
    """Of the contract suite's engines."""
    python = installed_python()
    assert kind == "local" or python is not None, "SGLang is not installed: make sglang"
    return EngineLaunch(
        kind=kind,
        model_path=str(model),
        weight_version="w0",
        context_tokens=CONTEXT_TOKENS if kind == "local" else SERVED_TOKENS,
        max_running_requests=MAX_RUNNING,
        seed=0,
        host="127.0.0.1",
        threads=1,
        migration_key=migration_key,
        python=python,
    )


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
