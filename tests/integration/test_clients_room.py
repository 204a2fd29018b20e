"""A context that is nearly full: clients are told of it when there is no room at all, and not
before. One of them would ask again with a limit of its own if it heard of the two together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.patient_engine import patient_engine
from gyre.testkit.proxy_world import CONTEXT_TOKENS, Client, Facts, running_proxy
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
ROOM = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("room") / "m", seed=0)


async def text_that_leaves(client: Client, room: int) -> str:
    """A text whose prompt has so many tokens less than the context."""
    used = await counted(client, "a")
    one = await counted(client, "a a") - used
    text = "a" + " a" * ((CONTEXT_TOKENS - room - used) // one)
    assert await counted(client, text) == CONTEXT_TOKENS - room
    return text


async def counted(client: Client, text: str) -> int:
    answer = await client.http.post(
        "/v1/messages/count_tokens",
        json={"model": "policy", "messages": [{"role": "user", "content": text}]},
        headers={"x-api-key": client.key},
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


async def test_an_answer_gets_what_is_left_of_the_context_whatever_limit_is_asked_for(
    model: Path,
) -> None:
    facts = Facts(Journal(log := MemoryEventLog(), SystemClock()))
    await facts.submit(model)
    async with patient_engine(model) as engine, running_proxy(log) as served:
        engine.go.set()
        await facts.rollout(0, engine.url)
        client = served.client(await facts.start(EXECUTION))
        text = await text_that_leaves(client, ROOM)
        body = {"model": "policy", "max_tokens": 32_000}
        answer = await served.http.post(
            "/v1/messages",
            json=body | {"messages": [{"role": "user", "content": text}]},
            headers={"x-api-key": client.key},
        )
    assert answer.status_code == 200, answer.text
    [call] = [event for event in await facts.calls(EXECUTION) if isinstance(event, CallRecorded)]
    assert call.num_input_tokens == CONTEXT_TOKENS - ROOM
    assert call.max_new_tokens == ROOM
    assert "max_tokens" in call.overridden
