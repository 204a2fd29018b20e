"""Clients that break off and come back, which most of them do without saying that they do: no
answer is lost, none is given twice, and only what arrived is a target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.runner.delivery import settle
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import Client, Facts, RunningProxy, running_proxy
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_retries") / "m", seed=0)


class GatedLog(MemoryEventLog):
    """Holds call_recorded back while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        if b'"call_recorded"' in data:
            self.waiting.set()
            await self.gate.wait()
        return await super().append(subject, data, event_id=event_id, expected=expected)


@dataclass(slots=True, kw_only=True)
class World:
    """One execution's client, its proxy and its engine."""

    log: GatedLog
    facts: Facts
    engine: PatientEngine
    served: RunningProxy
    client: Client

    async def recorded(self, number: int) -> list[CallRecorded]:
        """The execution's calls once there are so many."""
        async with asyncio.timeout(20):
            while True:
                events = await self.facts.calls(EXECUTION)
                calls = [event for event in events if isinstance(event, CallRecorded)]
                if len(calls) >= number:
                    return calls
                await asyncio.sleep(0.01)

    async def undelivered(self) -> list[CallUndelivered]:
        async with asyncio.timeout(20):
            while True:
                events = await self.facts.calls(EXECUTION)
                found = [event for event in events if isinstance(event, CallUndelivered)]
                if found:
                    return found
                await asyncio.sleep(0.01)

    async def broken_off(self, body: dict[str, Any], number: int = 1) -> None:
        """A request that leaves once the engine is at work on it."""
        asked = asyncio.create_task(self.client.post(body))
        await self.engine.until_asked(number)
        asked.cancel()
        await asyncio.wait({asked})

    async def targets(self) -> list[str]:
        tree = await self.facts.tree(EXECUTION)
        return [node.sampled.call for node in tree.targets() if node.sampled]


@asynccontextmanager
async def world(model: Path, **limits: float) -> AsyncIterator[World]:
    log = GatedLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    async with patient_engine(model) as engine, running_proxy(log, **limits) as served:
        await facts.rollout(0, engine.url)
        client = served.client(await facts.start(EXECUTION))
        yield World(log=log, facts=facts, engine=engine, served=served, client=client)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_a_retry_without_a_mark_finds_the_call_that_goes_on(model: Path) -> None:
    async with world(model) as w:
        await w.broken_off(BODY | {"stream": True})
        again = asyncio.create_task(w.client.post(BODY))  # Claude Code's: not streamed this time
        await asyncio.sleep(0.05)
        w.engine.go.set()
        assert text(await again) == "answer 1"
        [call] = await w.recorded(1)
        assert (call.outcome, call.fork_reason) == ("committed", None)
        assert await w.targets() == [call.call]


async def test_a_retry_without_a_mark_gets_the_answer_that_is_in_the_log(model: Path) -> None:
    async with world(model) as w:
        w.log.gate.clear()
        w.engine.go.set()
        asked = asyncio.create_task(w.client.post(BODY))
        await w.log.waiting.wait()
        asked.cancel()
        await asyncio.wait({asked})
        w.log.gate.set()
        [call] = await w.recorded(1)
        assert text(await w.client.post(BODY | {"logprobs": True})) == "answer 1"
        assert w.engine.asked == 1
        assert await w.targets() == [call.call]


async def test_a_delivered_answer_is_given_to_no_equal_request(model: Path) -> None:
    async with world(model) as w:
        w.engine.go.set()
        assert [text(await w.client.post(BODY)) for _ in range(2)] == ["answer 1", "answer 2"]
        calls = await w.recorded(2)
        assert await w.targets() == [call.call for call in calls]
        assert calls[1].delivered == (calls[0].call,)


async def test_parallel_agents_with_equal_requests_have_a_call_each(model: Path) -> None:
    async with world(model) as w:
        asked = [asyncio.create_task(w.client.post(BODY)) for _ in range(3)]
        await w.engine.until_asked(3)
        asked[1].cancel()
        await asyncio.wait({asked[1]})
        again = asyncio.create_task(w.client.post(BODY))
        await asyncio.sleep(0.05)
        w.engine.go.set()
        answers = {text(await request) for request in (asked[0], asked[2], again)}
        assert answers == {"answer 1", "answer 2", "answer 3"}
        assert len(await w.targets()) == 3


async def test_a_retry_that_says_so_takes_the_place_of_the_first(model: Path) -> None:
    async with world(model) as w:
        first = asyncio.create_task(w.client.post(BODY))
        await w.engine.until_asked(1)
        retry = asyncio.create_task(w.client.post(BODY, **RETRY))
        refused = await first
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "displaced")
        w.engine.go.set()
        assert text(await retry) == "answer 1"
        assert text(await w.client.post(BODY, **RETRY)) == "answer 1"  # it says it got nothing
        assert len(await w.recorded(1)) == 1


async def test_a_call_that_nobody_comes_for_is_aborted_with_what_it_sampled(model: Path) -> None:
    async with world(model, retry_grace_s=0.1) as w:
        await w.broken_off(BODY)
        [call] = await w.recorded(1)
        assert (call.outcome, call.finish_reason) == ("aborted", "abort")
        assert len(call.output_ids) > 0
        assert await w.targets() == []


async def test_an_answer_that_nobody_comes_for_is_undelivered(model: Path) -> None:
    async with world(model, retry_grace_s=0.2) as w:
        await w.broken_off(BODY)
        w.engine.go.set()
        [call] = await w.recorded(1)
        assert call.outcome == "committed"
        assert [event.call for event in await w.undelivered()] == [call.call]
        assert text(await w.client.post(BODY, **RETRY)) == "answer 2"
        calls = await w.recorded(2)
        assert await w.targets() == [calls[1].call]


async def test_a_retry_supersedes_a_call_that_is_being_given_up(model: Path) -> None:
    async with world(model, retry_grace_s=0) as w:
        w.engine.stops.clear()  # the engine takes its time to end the turn
        await w.broken_off(BODY)
        again = asyncio.create_task(w.client.post(BODY))
        await w.engine.until_asked(2)
        w.engine.stops.set()
        calls = await w.recorded(1)
        w.engine.go.set()
        assert text(await again) == "answer 2"
        calls = await w.recorded(2)
        assert [call.outcome for call in calls] == ["superseded", "committed"]
        assert await w.targets() == [calls[1].call]


@pytest.mark.parametrize("whole", [False, True])
async def test_the_end_of_an_attempt_leaves_nothing_to_wait_for(model: Path, whole: bool) -> None:
    async with world(model, retry_grace_s=200) as w:
        await w.broken_off(BODY)
        if whole:
            w.engine.go.set()
            await w.recorded(1)
        await w.facts.start(EXECUTION, attempt=2)
        [call] = await w.recorded(1)
        assert call.outcome == ("committed" if whole else "aborted")
        if whole:
            assert [event.call for event in await w.undelivered()] == [call.call]
        assert await w.targets() == []


@pytest.mark.parametrize("whole", [False, True])
async def test_the_runners_word_that_a_harness_ended_settles_its_calls(
    model: Path, whole: bool
) -> None:
    async with world(model, retry_grace_s=200) as w:
        await w.broken_off(BODY)
        if whole:
            w.engine.go.set()
            await w.recorded(1)
        assert await settle(w.served.url, w.client.key)
        events = await w.facts.calls(EXECUTION)
        assert isinstance(events[0], CallRecorded)
        assert events[0].outcome == ("committed" if whole else "aborted")
        assert [isinstance(event, CallUndelivered) for event in events[1:]] == [True] * whole
        assert (await w.client.post(BODY)).status_code == 401
        assert not await settle(w.served.url, "another key")


async def test_an_answer_that_takes_too_long_goes_on_for_the_retry(model: Path) -> None:
    async with world(model, answer_within_s=0.3) as w:
        late = await w.client.post(BODY)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "call_continues")
        assert 0 < float(late.headers["retry-after"]) <= 60
        again = asyncio.create_task(w.client.post(BODY))
        await asyncio.sleep(0.05)
        w.engine.go.set()
        assert text(await again) == "answer 1"
        assert len(await w.recorded(1)) == 1


async def test_a_new_process_gives_the_answer_that_the_last_one_kept(model: Path) -> None:
    async with world(model, retry_grace_s=200) as w:
        w.engine.go.set()
        await w.client.post(BODY)
        w.engine.go.clear()
        asked = asyncio.create_task(w.client.post(BODY))
        await w.engine.until_asked(2)
        asked.cancel()
        await asyncio.wait({asked})
        w.engine.go.set()
        calls = await w.recorded(2)
        async with running_proxy(w.log) as second:
            again = Client(second.http, w.client.key)
            assert text(await again.post(BODY)) == "answer 2"
            assert text(await again.post(BODY)) == "answer 3"
        assert await w.targets() == [call.call for call in (*calls, *(await w.recorded(3))[2:])]


async def test_a_call_says_how_it_came_and_how_long_it_waited(model: Path) -> None:
    async with world(model) as w:
        asked = asyncio.create_task(w.client.post(BODY))
        await w.engine.until_asked(1)
        await asyncio.sleep(0.1)
        w.engine.go.set()
        await asked
        [call] = await w.recorded(1)
        assert call.api == "chat/completions"
        assert call.queue_s is not None
        assert call.first_token_s is not None
        assert 0 <= call.queue_s <= call.first_token_s < call.duration_s - 0.05
