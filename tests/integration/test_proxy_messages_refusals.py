"""Anthropic's own SDK where the proxy says no: each refusal is an error that the SDK knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.proxy_world import CONTEXT_TOKENS, Facts, RunningProxy, running_proxy
from gyre.testkit.scripted_engine import scripted_engine
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
ANSWER = "so<|im_end|>"
HI: list[Any] = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A proxy and the SDK with the key of its one execution, whose engine has answers enough."""

    served: RunningProxy
    facts: Facts
    engine_url: str
    sdk: AsyncAnthropic

    def client(self, key: str) -> AsyncAnthropic:
        return AsyncAnthropic(api_key=key, base_url=self.served.url, max_retries=0, timeout=30)

    async def calls(self) -> list[CallRecorded]:
        events = await self.facts.calls(EXECUTION)
        return [event for event in events if isinstance(event, CallRecorded)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("messages_refusals") / "m", seed=0)


@asynccontextmanager
async def world(model: Path, **limits: float) -> AsyncIterator[World]:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    async with (
        scripted_engine(model, *[ANSWER] * 2) as engine,
        running_proxy(log, **limits) as served,
        AsyncAnthropic(
            api_key=await facts.start(EXECUTION), base_url=served.url, max_retries=0, timeout=30
        ) as sdk,
    ):
        await facts.rollout(0, engine.url)
        yield World(served=served, facts=facts, engine_url=engine.url, sdk=sdk)


async def ask(sdk: AsyncAnthropic, messages: list[Any]) -> Any:
    return await sdk.messages.create(model="policy", max_tokens=64, messages=messages)


async def test_a_full_context_is_refused_in_the_words_that_make_clients_compact(
    model: Path,
) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 3000}]
    async with world(model) as w:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(w.sdk, long)
        count = await w.sdk.messages.count_tokens(model="policy", messages=long)
        assert refused.value.body == {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"prompt is too long: {count.input_tokens} tokens > "
                f"{CONTEXT_TOKENS - 1} maximum",
            },
            "request_id": refused.value.request_id,
        }
        assert await w.calls() == []


async def test_errors_are_the_sdks_own(model: Path) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    async with world(model) as w:
        async with w.client("sk-ant-nobody") as stranger:
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await ask(stranger, HI)
            assert unknown.value.type == "authentication_error"
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.count_tokens(model="m", messages=HI)
        with pytest.raises(anthropic.BadRequestError, match="Could not process image"):
            await ask(w.sdk, [{"role": "user", "content": [picture]}])
        with pytest.raises(anthropic.NotFoundError) as missing:
            await w.sdk.post("/v1/messages/batches", body={}, cast_to=object)
        assert missing.value.type == "not_found_error"
        assert await w.calls() == []


async def test_a_body_over_the_limit_is_too_large(model: Path) -> None:
    async with world(model, max_body_bytes=2000) as w:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await ask(w.sdk, [{"role": "user", "content": "x" * 3000}])
        assert (refused.value.status_code, str(refused.value.type)) == (413, "request_too_large")


async def test_an_overload_is_the_vendors_and_worth_a_retry(model: Path) -> None:
    async with (
        world(model, max_calls=1) as w,
        w.client(await w.facts.start("job-test-g0000-e1", cell=9)) as busy,
    ):
        waits = asyncio.create_task(ask(busy, HI))
        while w.served.proxy.calls.num_running == 0:
            await asyncio.sleep(0.01)
        with pytest.raises(anthropic.InternalServerError) as refused:
            await ask(w.sdk, HI)
        assert (refused.value.status_code, refused.value.type) == (529, "overloaded_error")
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
        await w.facts.rollout(9, w.engine_url)
        await waits
        await ask(w.sdk, HI)


async def test_the_path_and_the_headers_that_clients_use_are_served(model: Path) -> None:
    async with world(model) as w:
        key, http = w.sdk.api_key or "", w.served.http
        for method in ("HEAD", "GET"):
            assert (await http.request(method, "/api/hello")).status_code == 200
        body = {"model": "m", "max_tokens": 9, "messages": HI}
        bearer = {"Authorization": f"Bearer {key}"}
        answered = await http.post("/v1/messages?beta=true", json=body, headers=bearer)
        assert answered.status_code == 200, answered.text
        assert answered.json()["type"] == "message"
        wrong = body | {"messages": "hi"}
        refused = await http.post("/v1/messages", json=wrong, headers={"x-api-key": key})
        assert refused.json()["error"]["message"] == "messages: Input should be a valid list"
        [recorded] = await w.calls()
        assert "max_tokens" in recorded.overridden
        assert key not in str(recorded)
