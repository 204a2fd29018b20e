"""Several proxies over one log: whoever gets an execution's next call takes the execution over, and
who had it finds out before anything is doubled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import (
    SECRET,
    Client,
    Facts,
    RunningProxy,
    end_process,
    free_port,
    running_proxy,
)
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.tree_paths import target_leaves

EXECUTION = "job-test-g0000-e0"
HI: dict[str, Any] = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_replicas") / "m", seed=0)


async def recorded(facts: Facts) -> list[CallRecorded]:
    events = await facts.calls(EXECUTION)
    return [event for event in events if isinstance(event, CallRecorded)]


async def until_sealed(facts: Facts) -> list[Any]:
    async with asyncio.timeout(20):
        while True:
            events = await facts.calls(EXECUTION)
            if events and isinstance(events[-1], CallsSealed):
                return events
            await asyncio.sleep(0.02)


@dataclass(slots=True)
class Talk:
    """An agent's conversation. messages: its history, mutated by `ask`."""

    key: str
    messages: list[dict[str, Any]] = field(default_factory=lambda: [HI])

    async def ask(self, at: httpx.AsyncClient, **headers: str) -> str:
        """The next turn, through one of the proxies."""
        answer = await Client(at, self.key).post({"messages": self.messages}, **headers)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        self.messages += [message, {"role": "user", "content": f"go on {len(self.messages)}"}]
        return str(message["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    facts: Facts
    engine: PatientEngine
    first: RunningProxy
    second: RunningProxy
    talk: Talk


@asynccontextmanager
async def pair(model: Path, **limits: float) -> AsyncIterator[Pair]:
    """Two proxies in this process over one log in memory."""
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(patient_engine(model))
        first, second = [
            await stack.enter_async_context(running_proxy(log, **limits)) for _ in range(2)
        ]
        await facts.rollout(0, engine.url)
        talk = Talk(await facts.start(EXECUTION))
        yield Pair(facts=facts, engine=engine, first=first, second=second, talk=talk)


async def test_a_conversation_may_change_proxies_between_any_two_turns(model: Path) -> None:
    async with pair(model, owner_patience_s=0.2) as p:
        p.engine.go.set()
        said = [
            await p.talk.ask(at.http) for at in (p.first, p.second, p.second, p.first, p.second)
        ]
        assert said == [f"answer {turn}" for turn in range(1, 6)]
        calls = await recorded(p.facts)
        assert [call.fork_reason for call in calls] == [None] * 5
        tree = await p.facts.tree(EXECUTION)
        [leaf] = target_leaves(tree)
        assert [node.id for node in tree.path(leaf.id) if node.sampled] == [c.node for c in calls]
        await p.facts.terminate(EXECUTION)
        events = await until_sealed(p.facts)
        await asyncio.sleep(0.5)  # both proxies seal, or find the seal
        assert await p.facts.calls(EXECUTION) == events
        assert events[-1].num_calls == 5
        assert not p.first.proxy._lives
        assert not p.second.proxy._lives


async def test_a_call_that_was_taken_over_in_the_middle_is_answered_once(model: Path) -> None:
    async with pair(model, owner_patience_s=0.2) as p:
        p.engine.go.set()
        await p.talk.ask(p.first.http)
        p.engine.go.clear()
        body = {"messages": p.talk.messages}
        stale = asyncio.create_task(Client(p.first.http, p.talk.key).post(body))
        await p.engine.until_asked(2)
        moved = asyncio.create_task(Client(p.second.http, p.talk.key).post(body))
        await p.engine.until_asked(3)
        p.engine.go.set()
        answers = [await moved, await stale]
        # One of them was first in the log; the other is told to ask again, and does.
        assert sorted(answer.status_code for answer in answers) == [200, 503]
        again = await Client(p.first.http, p.talk.key).post(
            body, **{"x-stainless-retry-count": "1"}
        )
        whole = next(answer for answer in answers if answer.status_code == 200)
        assert again.json()["choices"][0]["message"] == whole.json()["choices"][0]["message"]
        calls = await recorded(p.facts)
        assert [call.outcome for call in calls] == ["committed", "committed"]
        assert await p.talk.ask(p.second.http, **{"x-stainless-retry-count": "1"})


async def test_what_the_owner_has_to_say_comes_before_the_seal(model: Path) -> None:
    async with pair(model, owner_patience_s=5, retry_grace_s=60) as p:
        asked = asyncio.create_task(p.talk.ask(p.first.http))
        await p.engine.until_asked(1)
        asked.cancel()
        await asyncio.wait({asked})
        await p.facts.terminate(EXECUTION)
        [call, seal] = await until_sealed(p.facts)
        assert isinstance(call, CallRecorded)
        assert call.outcome == "aborted"
        assert seal.num_calls == 1


# --- as processes, on a real log --------------------------------------------------------------


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    try:
        await ensure_streams(server.url)
        yield server
    finally:
        server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    url: str
    process: subprocess.Popen[bytes]

    async def ready(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(60):
            while True:
                try:
                    if (await http.get(f"{self.url}/healthz")).status_code == 200:
                        return
                except httpx.TransportError:
                    assert self.process.poll() is None, "the proxy did not start"
                await asyncio.sleep(0.05)


def start(nats: NatsServer, home: Path, name: str) -> Process:
    port = free_port()
    environment = os.environ | {
        "GYRE_NATS_URL": nats.url,
        "GYRE_DATABASE_URL": "postgresql://unused",
        "GYRE_HOME": str(home / name),
        "GYRE_KEY_SECRET": SECRET,
        "GYRE_PROXY_PORT": str(port),
        "GYRE_PROXY_LIMITS__OWNER_PATIENCE_S": "0.5",
        "OMP_NUM_THREADS": "1",
    }
    with (home / f"{name}.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gyre.proxy"], env=environment, stdout=output, stderr=output
        )
    return Process(url=f"http://127.0.0.1:{port}", process=process)


async def test_a_proxy_that_is_killed_in_mid_turn_is_followed_by_another(
    nats: NatsServer, model: Path, tmp_path: Path
) -> None:
    log = JetStreamEventLog(nats.url)
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    proxies = [start(nats, tmp_path, name) for name in ("a", "b")]
    try:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(patient_engine(model))
            await facts.rollout(0, engine.url)
            talk = Talk(await facts.start(EXECUTION))
            await asyncio.gather(*(proxy.ready() for proxy in proxies))
            first, second = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=proxy.url, timeout=30, trust_env=False)
                )
                for proxy in proxies
            ]
            engine.go.set()
            await talk.ask(first)
            engine.go.clear()
            asked = asyncio.create_task(talk.ask(first))
            await engine.until_asked(2)
            proxies[0].process.kill()
            with pytest.raises(httpx.TransportError):
                await asked
            engine.go.set()
            assert await talk.ask(second) == "answer 3"  # a retry, as Claude Code's: not marked
            assert await talk.ask(second) == "answer 4"
            await facts.terminate(EXECUTION)
            events = await until_sealed(facts)
    finally:
        for proxy in proxies:
            end_process(proxy.process)
        await log.close()
    calls = [event for event in events if isinstance(event, CallRecorded)]
    assert [call.outcome for call in calls] == ["committed"] * 3
    assert [call.fork_reason for call in calls] == [None] * 3
    assert len({call.call for call in calls}) == 3
    assert events[-1].num_calls == 3
