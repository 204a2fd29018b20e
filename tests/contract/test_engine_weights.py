"""Weight updates, versions and memory, for whichever engine runs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError, Generation
from gyre.testkit.engine_server import RunningEngine
from gyre.testkit.engine_use import GREEDY, PROMPT, greedy, serve_weights

LONG = {"temperature": 1.0, "max_new_tokens": 1900, "ignore_eos": True}
DEADLINE_S = 60.0


def start(
    client: EngineClient, rid: str, params: dict[str, object] = LONG
) -> asyncio.Task[Generation]:
    return asyncio.create_task(client.generate(input_ids=PROMPT, sampling_params=params, rid=rid))


async def until_running(client: EngineClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await client.loads())["num_running_reqs"] < 1:
            await asyncio.sleep(0.01)


async def test_new_weights_answer_differently_and_old_ones_as_before(
    engine: RunningEngine, client: EngineClient
) -> None:
    before, digest = await greedy(client, "n1"), await client.checksum()
    await serve_weights(client, engine.models[1], "w1")
    assert await client.weight_version() == "w1"
    assert (await client.model_info())["model_path"] == str(engine.models[1])
    assert await greedy(client, "n2") != before
    assert await client.checksum() != digest
    await serve_weights(client, engine.models[0], "w2")
    assert (await greedy(client, "n3"), await client.checksum()) == (before, digest)


async def test_an_update_drops_cached_prefixes(engine: RunningEngine, client: EngineClient) -> None:
    await greedy(client, "k1")
    await serve_weights(client, engine.models[1], "w1")
    answer = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="k2")
    assert answer.cached_tokens == 0


async def test_an_engine_held_after_what_runs_ends_on_the_old_weights_and_begins_on_the_new(
    engine: RunningEngine, client: EngineClient
) -> None:
    call = start(client, "hold-1", engine.long_sampling())
    await until_running(client)
    holding = asyncio.create_task(client.pause_after_running(DEADLINE_S))
    answer = await asyncio.wait_for(call, DEADLINE_S)
    await holding
    late = asyncio.create_task(greedy(client, "hold-2"))
    await client.update_weights_from_disk(str(engine.models[1]), weight_version="w1")
    assert not late.done()
    await client.resume()
    assert (len(answer.output_ids), answer.finish_type) == (engine.long_tokens, "length")
    assert [span.version for span in answer.spans] == ["w0"]
    assert await asyncio.wait_for(late, DEADLINE_S) == await greedy(client, "hold-3")
    assert await client.weight_version() == "w1"


async def test_an_engine_that_serves_is_never_given_weights(
    engine: RunningEngine, client: EngineClient
) -> None:
    with pytest.raises(EngineRefusedError, match="not paused"):
        await client.update_weights_from_disk(str(engine.models[1]), weight_version="w1")
    assert await client.weight_version() == "w0"


async def test_an_update_that_aborts_all_ends_them_first(
    engine: RunningEngine, client: EngineClient
) -> None:
    before = await greedy(client, "end-0")
    call = start(client, "end-1")
    await until_running(client)
    body = {
        "model_path": str(engine.models[1]),
        "weight_version": "w1",
        "abort_all_requests": True,
    }
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        r = await http.post("/update_weights_from_disk", json=body)
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert answer.finish_type == "abort"
    if r.status_code != 200:
        # SGLang answers an aborted call while a further step of it is under way. An update that is
        # there before the step ends finds the engine busy: new weights, old name, old cache.
        assert engine.kind == "sglang"
        assert "Weights were updated, but the cache was not flushed" in r.text
        assert await client.weight_version() == "w0"
        await client.flush_cache(wait_s=DEADLINE_S)
        await client.update_weight_version("w1")
    after = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="end-2")
    assert (after.weight_version, after.cached_tokens) == ("w1", 0)
    assert after.output_ids != before


@pytest.mark.parametrize(("mode", "flush"), [("retract", True), ("in_place", False)])
async def test_a_paused_update_applies_at_once_and_makes_two_spans(
    engine: RunningEngine, client: EngineClient, mode: Any, flush: bool
) -> None:
    call = start(client, f"span-{mode}", engine.long_sampling())
    await until_running(client)
    await client.pause(mode)
    await client.update_weights_from_disk(
        str(engine.models[1]), weight_version="w1", flush_cache=flush
    )
    assert not call.done()
    await client.resume()
    answer = await asyncio.wait_for(call, DEADLINE_S)
    first, second = answer.spans
    assert (first.version, first.start, second.version) == ("w0", 0, "w1")
    assert (second.start, second.end) == (first.end, engine.long_tokens)
    assert answer.weight_version == "w1"
    assert answer.num_retractions == (mode == "retract")


async def test_an_in_place_update_that_must_flush_answers_400_but_is_done(
    engine: RunningEngine, client: EngineClient
) -> None:
    call = start(client, "odd-1")
    await until_running(client)
    await client.pause("in_place")
    with pytest.raises(EngineRefusedError, match="Weights were updated"):
        await client.update_weights_from_disk(str(engine.models[1]), weight_version="w1")
    await client.resume()
    await client.abort("odd-1")
    await asyncio.wait_for(call, DEADLINE_S)


async def test_a_checkpoint_that_is_not_there_changes_nothing(client: EngineClient) -> None:
    before = await greedy(client, "m1")
    await client.pause("retract")
    with pytest.raises(EngineRefusedError, match="update_weights_from_disk"):
        await client.update_weights_from_disk("/nonexistent", weight_version="w9")
    await client.resume()
    assert await client.weight_version() == "w0"
    assert await greedy(client, "m2") == before


async def test_the_version_can_be_renamed(client: EngineClient) -> None:
    await client.update_weight_version("renamed")
    assert await client.weight_version() == "renamed"
    answer = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="r1")
    assert [span.version for span in answer.spans] == ["renamed"]


async def test_memory_can_be_released_and_resumed(client: EngineClient) -> None:
    before = await greedy(client, "f1")
    await client.pause("in_place")
    await client.release_memory()
    await client.resume_memory()
    await client.resume()
    answer = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="f2")
    assert (answer.output_ids, answer.cached_tokens) == (before, 0)


async def test_memory_that_was_not_released_is_not_resumed(client: EngineClient) -> None:
    before = await greedy(client, "g1")
    await client.resume_memory()
    await client.pause("in_place")
    await client.release_memory()
    await client.resume_memory(("weights", "kv_cache"))
    await client.resume_memory()
    await client.resume()
    assert await greedy(client, "g2") == before


async def test_a_busy_engine_is_never_asked_to_release_memory(client: EngineClient) -> None:
    call = start(client, "busy-1")
    await until_running(client)
    with pytest.raises(EngineRefusedError, match="not paused"):
        await client.release_memory()
    await client.pause("in_place")
    with pytest.raises(EngineRefusedError, match="busy"):
        await client.release_memory()
    await client.resume_memory()
    await client.resume()
    await client.abort("busy-1")
    await asyncio.wait_for(call, DEADLINE_S)


async def test_what_waits_behind_a_pause_lets_the_memory_go_and_runs_afterwards(
    engine: RunningEngine, client: EngineClient
) -> None:
    call = start(client, "behind-1", engine.long_sampling())
    await until_running(client)
    await client.pause("retract")
    await client.release_memory()
    await client.resume_memory()
    await client.resume()
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert (len(answer.output_ids), answer.finish_type) == (engine.long_tokens, "length")
