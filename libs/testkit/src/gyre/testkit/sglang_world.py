"""The proxy as a process over a real JetStream, before engines that a test brings along."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.cell_agent.engine.base import EngineClient
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallRerouted
from gyre.testkit.engine_server import SERVED_TOKENS, die_with_parent
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.proxy_world import SECRET, Client, Facts, end_process

START_DEADLINE_S = 60.0
# For what must come soon, on a machine that does other things too.
PATIENCE_S = 60.0
POLL_S = 0.01
REQUESTS_METRIC = "sglang:num_requests_total"


@dataclass(slots=True, kw_only=True)
class SglangWorld:
    """url: of the proxy. num_executions: how many `start` has begun."""

    facts: Facts
    http: httpx.AsyncClient
    url: str
    log: Path
    num_executions: int = field(default=0)

    async def start(self, cell: int = 0) -> tuple[str, Client]:
        """A new execution that runs on `cell`, and its chat client."""
        execution = f"job-test-g{self.num_executions:04d}-e0"
        self.num_executions += 1
        return execution, Client(self.http, await self.facts.start(execution, cell))

    async def events(self, execution: str, *, calls: int = 1) -> list[Body]:
        """What the proxy said of it, once so many calls are recorded."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                events = await self.facts.calls(execution)
                if sum(isinstance(event, CallRecorded) for event in events) >= calls:
                    return events
                await asyncio.sleep(POLL_S)

    async def calls(self, execution: str, *, calls: int = 1) -> list[CallRecorded]:
        events = await self.events(execution, calls=calls)
        return [event for event in events if isinstance(event, CallRecorded)]

    async def moves(self, execution: str) -> list[CallRerouted]:
        events = await self.facts.calls(execution)
        return [event for event in events if isinstance(event, CallRerouted)]

    def said(self, event: str) -> list[dict[str, Any]]:
        """The lines of the proxy's log that carry this action name."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in map(json.loads, lines) if line.get("event") == event]


@asynccontextmanager
async def sglang_world(root: Path, model: Path, **rollout: Any) -> AsyncIterator[SglangWorld]:
    """A job of `model` and its proxy, while the block lasts. rollout: fields of the job's section.
    A call is held for 0.2 s after its client has left."""
    nats = NatsServer(root / "nats").start()
    try:
        await ensure_streams(nats.url)
        log = JetStreamEventLog(nats.url, name="sglang-world")
        try:
            facts = Facts(Journal(log, SystemClock()))
            usual: dict[str, Any] = {"context_tokens": SERVED_TOKENS, "call_timeout_s": 60.0}
            await facts.submit(model, **usual | rollout)
            url = f"http://127.0.0.1:{free_port()}"
            process = _proxy(root, nats.url, url)
            try:
                async with httpx.AsyncClient(base_url=url, timeout=90, trust_env=False) as http:
                    await _until_healthy(http, process)
                    yield SglangWorld(facts=facts, http=http, url=url, log=root / "proxy.log")
            finally:
                await asyncio.to_thread(end_process, process)
        finally:
            await log.close()
    finally:
        nats.stop()


async def is_under_way(
    engine: EngineClient, asked: asyncio.Task[object], num_tokens: int = 20
) -> bool:
    """Waits until the engine's only call has come `num_tokens` far; False if it ended before."""
    first = 0
    async with asyncio.timeout(PATIENCE_S):
        while not asked.done():
            load = await engine.loads()
            if load["num_running_reqs"]:
                first = first or load["num_active_tokens"]
                if load["num_active_tokens"] >= first + num_tokens:
                    return True
            await asyncio.sleep(POLL_S)
    return False


async def num_requests_served(engine: EngineClient) -> float:
    """Requests that the engine has taken since it started, by its own count."""
    async with httpx.AsyncClient(base_url=engine.base_url, trust_env=False) as http:
        lines = (await http.get("/metrics", timeout=PATIENCE_S)).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(REQUESTS_METRIC))


async def until_idle(engine: EngineClient) -> None:
    """Waits until nothing runs or waits in the engine."""
    async with asyncio.timeout(PATIENCE_S):
        while await engine.num_requests():
            await asyncio.sleep(POLL_S)


def _proxy(root: Path, nats_url: str, url: str) -> subprocess.Popen[bytes]:
    settings = {
        "GYRE_NATS_URL": nats_url,
        "GYRE_DATABASE_URL": "postgresql://unused",
        "GYRE_HOME": str(root / "home"),
        "GYRE_KEY_SECRET": SECRET,
        "GYRE_PROXY_PORT": url.rpartition(":")[2],
        "GYRE_PROXY_LIMITS__RETRY_GRACE_S": "0.2",
        "OMP_NUM_THREADS": "1",
    }
    with (root / "proxy.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gyre.proxy"],
            env=os.environ | settings,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, which takes no lock
        )


async def _until_healthy(http: httpx.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(START_DEADLINE_S):
        while process.poll() is None:
            try:
                if (await http.get("/healthz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(f"the proxy ended with status {process.returncode}")
