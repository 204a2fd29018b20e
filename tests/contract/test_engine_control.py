"""Abort, pause, cache and health, for whichever engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError, Generation
from gyre.testkit.engine_server import RunningEngine

PROMPT = list(range(30, 60))
LONG = {"temperature": 1.0, "max_new_tokens": 1900, "ignore_eos": True}
SHORT = {"temperature": 1.0, "max_new_tokens": 3, "ignore_eos": True}
DEADLINE_S = 60.0


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url) as made:
        yield made
        await made.resume()
        await made.abort()


def start(
    client: EngineClient, rid: str, params: dict[str, object] = LONG
) -> asyncio.Task[Generation]:
    return asyncio.create_task(client.generate(input_ids=PROMPT, sampling_params=params, rid=rid))


async def until_running(client: EngineClient, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await client.loads())["num_running_reqs"] < count:
            await asyncio.sleep(0.01)


async def until_idle(client: EngineClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await client.num_requests():
            await asyncio.sleep(0.01)


async def test_an_aborted_call_answers_with_what_it_had(client: EngineClient) -> None:
    call = start(client, "abort-01")
    await until_running(client, 1)
    await client.abort("abort-01")
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert answer.finish_type == "abort"
    assert 0 < len(answer.output_ids) == len(answer.logprobs) < 1900
    assert answer.spans[-1].end == len(answer.output_ids)


async def test_abort_spares_other_requests(client: EngineClient) -> None:
    calls = [start(client, rid) for rid in ("keep-01", "drop-01")]
    await until_running(client, 2)
    await client.abort("drop-01")
    assert (await asyncio.wait_for(calls[1], DEADLINE_S)).finish_type == "abort"
    assert not calls[0].done()
    await client.abort()
    assert (await asyncio.wait_for(calls[0], DEADLINE_S)).finish_type == "abort"


async def test_an_aborted_stream_ends_with_an_abort_event(client: EngineClient) -> None:
    events = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in client.stream(input_ids=PROMPT, sampling_params=LONG, rid="stream-01"):
            if not events:
                await client.abort("stream-01")
            events.append(event)
    assert events[-1].finish_type == "abort"
    assert len(events[-1].logprobs) == len(events[-1].output_ids) > 0


async def test_aborting_an_unknown_rid_is_silent(client: EngineClient) -> None:
    await client.abort("nobody")


async def test_a_duplicate_rid_is_refused_and_the_first_goes_on(client: EngineClient) -> None:
    call = start(client, "twin-01")
    await until_running(client, 1)
    with pytest.raises(EngineRefusedError, match="Duplicate"):
        await client.generate(input_ids=PROMPT, sampling_params=SHORT, rid="twin-01")
    assert not call.done()
    await client.abort("twin-01")
    await asyncio.wait_for(call, DEADLINE_S)
    again = await client.generate(input_ids=PROMPT, sampling_params=SHORT, rid="twin-01")
    assert len(again.output_ids) == 3


async def test_a_client_that_leaves_aborts_its_request(client: EngineClient) -> None:
    call = start(client, "leave-01")
    await until_running(client, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_idle(client)


async def test_a_stream_that_is_left_aborts_its_request(client: EngineClient) -> None:
    stream = client.stream(input_ids=PROMPT, sampling_params=LONG, rid="leave-02")
    async with asyncio.timeout(DEADLINE_S):
        await anext(stream)
        await stream.aclose()
    await until_idle(client)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_pause_holds_what_runs_and_what_comes(
    engine: RunningEngine, client: EngineClient, mode: str
) -> None:
    seen: list[int] = []

    async def consume() -> Generation:
        last = None
        async for event in client.stream(
            input_ids=PROMPT, sampling_params=engine.long_sampling(), rid=f"hold-{mode}"
        ):
            seen.append(len(event.output_ids))
            last = event
        assert last is not None
        return last

    running = asyncio.create_task(consume())
    await until_running(client, 1)
    await client.pause(mode)  # type: ignore[arg-type]
    assert not await client.ready()
    late = start(client, f"late-{mode}", SHORT)
    await asyncio.sleep(0.3)
    count = len(seen)
    await asyncio.sleep(0.3)
    assert len(seen) == count
    assert not running.done()
    assert not late.done()
    await client.resume()
    answer = await asyncio.wait_for(running, DEADLINE_S)
    assert (len(answer.output_ids), answer.finish_type) == (engine.long_tokens, "length")
    assert answer.num_retractions == (mode == "retract")
    assert len((await asyncio.wait_for(late, DEADLINE_S)).output_ids) == 3


async def test_a_pause_of_mode_abort_ends_all_and_blocks_new(client: EngineClient) -> None:
    calls = [start(client, f"end-{index}") for index in range(2)]
    await until_running(client, 2)
    await client.pause("abort")
    answers = await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S)
    assert [answer.finish_type for answer in answers] == ["abort", "abort"]
    late = start(client, "end-late", SHORT)
    await asyncio.sleep(0.2)
    assert not late.done()
    await client.resume()
    assert len((await asyncio.wait_for(late, DEADLINE_S)).output_ids) == 3


async def test_flush_is_refused_while_busy_and_waits_if_told(
    engine: RunningEngine, client: EngineClient
) -> None:
    call = start(client, "flush-01", engine.long_sampling())
    await until_running(client, 1)
    with pytest.raises(EngineRefusedError, match="cache"):
        await client.flush_cache()
    await client.flush_cache(wait_s=DEADLINE_S)
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert len(answer.output_ids) == engine.long_tokens


async def test_flush_works_under_retract_and_fails_in_place(client: EngineClient) -> None:
    for mode, works in (("retract", True), ("in_place", False)):
        call = start(client, f"flush-{mode}")
        await until_running(client, 1)
        await client.pause(mode)  # type: ignore[arg-type]
        if works:
            await client.flush_cache()
        else:
            with pytest.raises(EngineRefusedError):
                await client.flush_cache()
        await client.resume()
        await client.abort(f"flush-{mode}")
        await asyncio.wait_for(call, DEADLINE_S)


async def test_a_wrong_pause_mode_and_a_missing_body_are_refused(engine: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, timeout=30) as http:
        wrong = await http.post("/pause_generation", json={"mode": "x"})
        missing = await http.post("/pause_generation")
        unpaused = await http.post("/continue_generation")
    assert [r.status_code for r in (wrong, missing, unpaused)] == [400, 400, 400]
    assert wrong.json()["object"] == "error"


async def test_read_only_routes_answer(engine: RunningEngine, client: EngineClient) -> None:
    assert await client.health()
    assert await client.ready()
    info = await client.model_info()
    assert info["weight_version"] == "w0"
    assert info["model_path"] == str(engine.models[0])
    load = await client.loads()
    assert {"num_running_reqs", "num_waiting_reqs", "token_usage"} <= load.keys()
    async with httpx.AsyncClient(base_url=engine.url, timeout=30) as http:
        metrics = (await http.get("/metrics")).text
        assert (await http.get("/health_generate")).status_code == 200
        server = (await http.get("/server_info")).json()
    assert "sglang:num_running_reqs" in metrics
    assert "sglang:generation_tokens_total" in metrics
    assert server["internal_states"]
