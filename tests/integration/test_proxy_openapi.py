"""The endpoints under schemathesis: requests that fit their description, and others nearly so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.generation import GenerationMode

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.testkit.patient_engine import patient_engine
from gyre.testkit.proxy_openapi import document
from gyre.testkit.proxy_world import Facts, running_proxy
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
SERVED = {200, 400, 401, 413}

schema = schemathesis.openapi.from_dict(document())
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A proxy in a thread of its own, since schemathesis asks and waits: its address and a key."""
    model = make_tiny_model(tmp_path_factory.mktemp("proxy_openapi") / "m", seed=0)
    found: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        over = asyncio.Event()
        log = MemoryEventLog()
        facts = Facts(Journal(log, SystemClock()))
        await facts.submit(model)
        async with patient_engine(model) as engine, running_proxy(log) as served:
            engine.go.set()
            await facts.rollout(0, engine.url)
            key = await facts.start(EXECUTION)
            found.extend((served.url, key, asyncio.get_running_loop(), over))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    url, key, loop, over = found
    yield url, key
    loop.call_soon_threadsafe(over.set)
    thread.join(30)


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_with_a_failure_of_the_proxy(
    case: Any, proxy: tuple[str, str]
) -> None:
    url, key = proxy
    answer = case.call(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=20)
    expected = SERVED if case.method == "POST" else {405}
    assert answer.status_code in expected, answer.text
