"""What the proxy lives through: dead engines, publications, clients that leave, its own death."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import (
    CallRecorded,
    CallRerouted,
    CallsSealed,
)
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.proxy_world import (
    SECRET,
    Client,
    Facts,
    LocalEngine,
    RunningProxy,
    end_process,
    local_engine,
    running_proxy,
)
from gyre.testkit.tiny_model import make_two_tiny_models

EXECUTIONS = [f"job-test-g0000-e{index}" for index in range(8)]
EXECUTION = EXECUTIONS[0]
TOKENS_METRIC = "sglang:generation_tokens_total"
LONG: dict[str, Any] = {"max_new_tokens": 400, "call_timeout_s": 30.0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("proxy_models")
    return make_two_tiny_models(root)


@pytest.fixture(scope="module")
def engine(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEngine]:
    log = tmp_path_factory.mktemp("proxy_engine") / "engine.log"
    with local_engine(models[0], log) as running:
        yield running


async def until(facts: Facts, execution: str, kind: type[Any]) -> list[Any]:
    """The execution's call events once one of `kind` is among them."""
    async with asyncio.timeout(20):
        while True:
            events = await facts.calls(execution)
            if any(isinstance(event, kind) for event in events):
                return events
            await asyncio.sleep(0.02)


def one_call(events: list[Any]) -> CallRecorded:
    [call] = [event for event in events if isinstance(event, CallRecorded)]
    return call


def assert_whole(call: CallRecorded) -> None:
    """Committed, one logprob a token, spans over all of them without a hole."""
    assert call.outcome == "committed"
    assert len(call.output_logprobs) == len(call.output_ids)
    assert [span.start for span in call.spans] == [0, *(span.end for span in call.spans[:-1])]
    assert call.spans[-1].end == len(call.output_ids)


async def num_sampled(engine: LocalEngine) -> float:
    """Tokens that the engine has sampled since it started."""
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        lines = (await http.get("/metrics", timeout=20)).text.splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith(TOKENS_METRIC)]
    return float(value)


async def ask_all(
    served: RunningProxy, facts: Facts, engine: LocalEngine
) -> asyncio.Future[list[Any]]:
    """One long call of each of EXECUTIONS, under way: some of them are in mid-stream."""
    clients = [served.client(await facts.start(execution)) for execution in EXECUTIONS]
    before = await num_sampled(engine)
    asked = asyncio.gather(*(client.chat("tell me a long story") for client in clients))
    async with asyncio.timeout(20):
        while await num_sampled(engine) < before + 10 * len(EXECUTIONS):
            await asyncio.sleep(0.01)
    return asked


async def test_an_engine_that_dies_loses_no_token_it_sent(
    models: tuple[Path, Path], engine: LocalEngine, tmp_path: Path
) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **LONG)
    with local_engine(models[0], tmp_path / "engine.log") as doomed:
        await facts.rollout(0, doomed.url)
        async with running_proxy(log) as served:
            asked = await ask_all(served, facts, doomed)
            doomed.kill()
            await asyncio.sleep(0.3)
            await facts.rollout(0, engine.url)  # the agent brings another engine up
            await asked
    kept = []
    for execution in EXECUTIONS:
        events = await facts.calls(execution)
        assert_whole(one_call(events))
        reroutes = [event for event in events if isinstance(event, CallRerouted)]
        assert {event.reason for event in reroutes} <= {"engine_lost"}
        assert len(reroutes) <= 1
        kept += [event.tokens_kept for event in reroutes]
    assert any(tokens > 0 for tokens in kept), kept


async def test_a_publication_in_mid_call_leaves_exact_spans(
    models: tuple[Path, Path], engine: LocalEngine
) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **LONG)
    await facts.rollout(0, engine.url)
    async with running_proxy(log) as served, httpx.AsyncClient(base_url=engine.url) as control:

        async def ask(path: str, **body: Any) -> None:
            (await control.post(path, json=body, timeout=30)).raise_for_status()

        asked = await ask_all(served, facts, engine)
        await ask("/pause_generation", mode="retract")
        await ask(
            "/update_weights_from_disk",
            model_path=str(models[1]),
            weight_version="0.1",
            flush_cache=True,
        )
        await ask("/continue_generation")
        await asked
        await ask("/update_weights_from_disk", model_path=str(models[0]), weight_version="0.0")
    versions = []
    for execution in EXECUTIONS:
        call = one_call(await facts.calls(execution))
        assert_whole(call)
        versions.append([span.version for span in call.spans])
    assert [0, 1] in versions
    assert all(found in ([0], [1], [0, 1]) for found in versions)


async def test_an_aborted_engine_call_is_continued(
    models: tuple[Path, Path], engine: LocalEngine
) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **LONG)
    await facts.rollout(0, engine.url)
    async with running_proxy(log) as served, httpx.AsyncClient(base_url=engine.url) as control:
        asked = await ask_all(served, facts, engine)
        await control.post("/abort_request", json={"abort_all": True})
        await asked
    reasons: list[str] = []
    for execution in EXECUTIONS:
        events = await facts.calls(execution)
        assert_whole(one_call(events))
        reasons += [event.reason for event in events if isinstance(event, CallRerouted)]
    assert set(reasons) == {"publication"}


async def test_a_call_without_an_engine_fails_at_its_deadline(
    models: tuple[Path, Path],
) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], call_timeout_s=0.5)
    async with running_proxy(log) as served:
        client = served.client(await facts.start(EXECUTION))
        refused = await client.post({"messages": [{"role": "user", "content": "hi"}]})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "no_engine"
    assert one_call(await facts.calls(EXECUTION)).outcome == "failed"


async def test_a_stream_that_waits_is_kept_alive_and_can_still_fail(
    models: tuple[Path, Path], engine: LocalEngine
) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], call_timeout_s=1.5)
    async with running_proxy(log, keepalive_s=0.1) as served:
        client = served.client(await facts.start(EXECUTION))
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        asked = asyncio.create_task(client.post(body))
        await asyncio.sleep(0.5)
        await facts.rollout(0, engine.url)
        events = (await asked).text.split("\n\n")
        assert '"delta":{"role":"assistant","content":""}' in events[0]
        assert '"delta":{"content":""}' in events[1]
        assert events[-2:] == ["data: [DONE]", ""]

        lonely = served.client(await facts.start("job-test-g0000-e1", cell=3))
        events = (await lonely.post(body)).text.split("\n\n")
        assert '"code":"no_engine"' in events[-2]


# --- the proxy as a process, on a real log ---------------------------------------------------


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    try:
        await ensure_streams(server.url)
        yield server
    finally:
        server.stop()


class Processes:
    """A proxy process that is started again whenever it ends, over one listening socket."""

    def __init__(self, nats: NatsServer, home: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.num_starts = 0
        self._home = home
        self._environment = os.environ | {
            "GYRE_NATS_URL": nats.url,
            "GYRE_DATABASE_URL": "postgresql://unused",
            "GYRE_HOME": str(home),
            "GYRE_KEY_SECRET": SECRET,
            "GYRE_PROXY_LISTEN_FD": str(self.listener.fileno()),
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, failpoint: str = "") -> None:
        self.num_starts += 1
        with (self._home / "proxy.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gyre.proxy"],
                env=self._environment | ({"GYRE_FAILPOINT": failpoint} if failpoint else {}),
                pass_fds=[self.listener.fileno()],
                stdout=output,
                stderr=output,
            )

    async def keep_alive(self, failpoint: str) -> None:
        """What the supervisor does: whenever the process ends, start it again."""
        self.start(failpoint)
        while True:
            assert self.process is not None
            while self.process.poll() is None:
                await asyncio.sleep(0.05)
            self.start(failpoint)

    def close(self) -> None:
        assert self.process is not None
        end_process(self.process)
        self.listener.close()


@pytest.mark.parametrize(
    ("failpoint", "mark"),
    [
        ("proxy.after_append", {}),
        ("proxy.mid_stream:20", {"x-stainless-retry-count": "1"}),
    ],
)
async def test_a_killed_proxy_comes_back_and_the_retry_is_answered_once(
    nats: NatsServer,
    models: tuple[Path, Path],
    engine: LocalEngine,
    tmp_path: Path,
    failpoint: str,
    mark: dict[str, str],
) -> None:
    log = JetStreamEventLog(nats.url)
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **LONG)
    await facts.rollout(0, engine.url)
    key = await facts.start(EXECUTION)
    processes = Processes(nats, tmp_path)
    keeper = asyncio.create_task(processes.keep_alive(failpoint))
    try:
        async with httpx.AsyncClient(base_url=processes.url, timeout=60, trust_env=False) as http:
            body = {"messages": [{"role": "user", "content": "tell me a story"}]}
            client = Client(http, key)
            with pytest.raises(httpx.TransportError):
                await client.post(body)
            answer = await client.post(body, **mark)
            assert answer.status_code == 200, answer.text
            await client.post(
                {
                    "messages": [
                        *body["messages"],
                        answer.json()["choices"][0]["message"],
                        {"role": "user", "content": "go on"},
                    ]
                }
            )
        await facts.terminate(EXECUTION)
        events = await until(facts, EXECUTION, CallsSealed)
    finally:
        keeper.cancel()
        processes.close()
        await log.close()
    assert processes.num_starts == 2
    calls = [event for event in events if isinstance(event, CallRecorded)]
    assert [call.outcome for call in calls] == ["committed", "committed"]
    assert calls[1].parent == calls[0].node
    assert events[-1] == CallsSealed(execution=EXECUTION, num_calls=2, last_seq=2)
