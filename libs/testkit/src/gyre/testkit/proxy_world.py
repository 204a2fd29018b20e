"""What surrounds the proxy in a test: engines as processes, the facts others say, clients.

The proxy itself runs in this process (over any event log) or as a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gyre.adapters.blobs import BlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import EventLog, Stream
from gyre.adapters.journal import Journal
from gyre.adapters.keys import KeyIdentity, make_key, make_migration_key
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import RoleChanged
from gyre.contracts.events.executions import AttemptStarted, Terminated
from gyre.contracts.events.scheduling import (
    JobSubmitted,
    Move,
    StartOrder,
    StartOrdered,
    TransitionStarted,
)
from gyre.core.routing import weight_version_name
from gyre.core.tree import Tree
from gyre.proxy.app import app_runner
from gyre.proxy.limits import Limits
from gyre.proxy.sampling.streams import Engines, engine_session
from gyre.proxy.service import Proxy
from gyre.testkit.nats_server import free_port
from gyre.testkit.served_app import served
from gyre.testkit.specs import job_spec

SECRET = "test-key-secret"
JOB = "job-test"
CONTEXT_TOKENS = 1024
START_TIMEOUT_S = 60.0

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Write a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """A running `local` engine. process: killed by the test or at the end of the block."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def local_engine(
    model: Path, log: Path, *extra: str, port: int | None = None, version: int = 0
) -> Iterator[LocalEngine]:
    """Starts `local`, waits until it is healthy, ends it with the block."""
    port = port or free_port()
    command = [sys.executable, "-m", "gyre.cell_agent.engine.local", "--model-path", str(model)]
    command += ["--port", str(port), "--context-length", str(CONTEXT_TOKENS)]
    command += ["--weight-version", weight_version_name(0, version), *extra]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "GYRE_MIGRATION_KEY": make_migration_key(SECRET, JOB)},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(process, url, log)
        yield LocalEngine(url=url, process=process)
    finally:
        end_process(process)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL after 10 s."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _wait_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"the engine did not start: {log.read_text(errors='replace')[-2000:]}")


@dataclass(slots=True)
class Facts:
    """Says what scheduler, runner and cells say. `append` mutates the log only."""

    journal: Journal
    job: str = JOB
    num_appended: int = 0

    async def append(self, subject: str, body: Body) -> int:
        self.num_appended += 1
        cause = ("test", self.num_appended, subject)
        return await self.journal.append(subject, body, job=self.job, cause=cause, expected=None)

    async def submit(
        self, model: Path, *, context_tokens: int = CONTEXT_TOKENS, **rollout: Any
    ) -> None:
        """A job whose policy is `model`; rollout: fields of the job file's section."""
        spec = job_spec(
            heldout=False,
            sections={
                "model": {"path": str(model), "context_tokens": context_tokens},
                "rollout": {"max_new_tokens": 48, "call_timeout_s": 30.0} | rollout,
            },
        )
        submitted = JobSubmitted(spec=spec, train_tasks=(), heldout_tasks=())
        await self.append(subjects.sched(self.job), submitted)

    async def rollout(self, cell: int, url: str, version: int = 0) -> None:
        """The cell's engine is ready at `url`."""
        fact = RoleChanged(
            cell=cell, role="rollout", version=version, lineage=0, engine_url=url, duration_s=0.0
        )
        await self.append(subjects.cell(self.job, cell), fact)

    async def order(self, execution: str, cell: int, seed: int = 7) -> None:
        """A start order."""
        order = StartOrder(execution=execution, group="g", task="t", cell=cell, seed=seed)
        fact = StartOrdered(based_on=0, now=0.0, orders=(order,))
        await self.append(subjects.sched(self.job), fact)

    async def start(self, execution: str, cell: int = 0, attempt: int = 1) -> str:
        """Order and attempt; the attempt's key."""
        if attempt == 1:
            await self.order(execution, cell)
        fact = AttemptStarted(execution=execution, attempt=attempt, key_id="k", workspace="w")
        await self.append(subjects.run(self.job, execution), fact)
        return self.key(execution, attempt)

    def key(self, execution: str, attempt: int = 1) -> str:
        return make_key(SECRET, KeyIdentity(job=self.job, execution=execution, attempt=attempt))

    async def move(self, source: int, destination: int, *executions: str) -> int:
        """The source cell leaves rollout; its executions go to `destination`. The decision's
        sequence."""
        moves = tuple(
            Move(execution=execution, source=source, destination=destination)
            for execution in executions
        )
        fact = TransitionStarted(
            based_on=0,
            now=0.0,
            cell=source,
            to="training",
            moves=moves,
            waterlevel=0,
            capacity_after=0,
        )
        return await self.append(subjects.sched(self.job), fact)

    async def terminate(self, execution: str, attempt: int = 1) -> None:
        fact = Terminated(
            execution=execution,
            attempt=attempt,
            reason="completed",
            exit_code=0,
            signal=None,
            workspace="w",
            duration_s=1.0,
        )
        await self.append(subjects.run(self.job, execution), fact)

    async def calls(self, execution: str) -> list[Body]:
        """What the proxy has said of the execution."""
        subject = subjects.calls(self.job, execution)
        return [fact.body async for fact in self.journal.read(Stream.CALLS, (subject,))]

    async def tree(self, execution: str) -> Tree:
        tree = Tree()
        for event in await self.calls(execution):
            tree.evolve(event)
        return tree


@dataclass(slots=True)
class Client:
    """An OpenAI client as a harness would use one. messages: its history, mutated by `chat`."""

    http: httpx.AsyncClient
    key: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {self.key}"} | headers,
        )

    async def chat(self, text: str, **extra: Any) -> dict[str, Any]:
        """One turn; the answer's message, also appended to the history with tool results."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": "policy", "messages": self.messages, "tools": TOOLS} | extra
        response = await self.post(body)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        self.messages.append(message)
        for call in message.get("tool_calls") or ():
            result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
            self.messages.append(result)
        return message


@dataclass(slots=True, kw_only=True)
class RunningProxy:
    """A proxy in this process."""

    url: str
    proxy: Proxy
    http: httpx.AsyncClient

    def client(self, key: str) -> Client:
        return Client(self.http, key)


@asynccontextmanager
async def running_proxy(
    log: EventLog, blobs: BlobStore | None = None, **limits: float
) -> AsyncIterator[RunningProxy]:
    """Serves on a free port until the block ends; its loop's errors surface at the end. limits:
    fields of `Limits`."""
    async with engine_session() as session, Engines(session) as engines:
        clock = SystemClock()
        bounds = Limits.model_validate(limits)
        proxy = Proxy(Journal(log, clock, blobs), engines, clock, SECRET, bounds)
        following = asyncio.create_task(proxy.follow())
        caught_up = asyncio.create_task(proxy.caught_up.wait())
        await asyncio.wait({caught_up, following}, return_when="FIRST_COMPLETED")
        async with (
            served(app_runner(proxy, clock)) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
        ):
            try:
                yield RunningProxy(url=url, proxy=proxy, http=http)
            finally:
                assert not following.done() or following.exception() is None
                following.cancel()
                await asyncio.wait({following})
