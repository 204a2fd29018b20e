"""New weights into an engine that serves, from a disk and over the network, for whichever engine
runs: what becomes of its calls, and what it serves when the weights cannot be had.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineClient, Generation, WeightsDiffer
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.weights.courier import Courier, WeightsNotHad
from gyre.cell_agent.weights.delivery import InFlight, ServedWeights, load_while_serving
from gyre.core.cell.state import Exposure
from gyre.testkit.engine_server import RunningEngine
from gyre.testkit.engine_use import GREEDY, PROMPT, serve_weights, serving
from gyre.testkit.weight_relay import relaying

JOB, SECRET = "j", "of the stack"
NEW = (1, 2)
DEADLINE_S = 60.0


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    """Starts every test with `models[0]` as `1.1`."""
    async with serving(engine, "1.1") as made:
        yield made


@pytest.fixture
async def core() -> AsyncIterator[Courier]:
    made = Courier(SECRET, "127.0.0.1")
    yield made
    await made.close()


@pytest.fixture(params=["disk", "tcp"])
def weights(request: pytest.FixtureRequest, engine: RunningEngine, core: Courier) -> ServedWeights:
    """`models[1]` under the name NEW, by either way."""
    found = there(engine)
    return found if request.param == "disk" else sent(found, core)


def there(engine: RunningEngine) -> ServedWeights:
    path: Path = engine.models[1]
    return ServedWeights(
        path=str(path), version=NEW, checksum=checksum(read_checkpoint(path)), job=JOB
    )


def sent(weights: ServedWeights, core: Courier) -> ServedWeights:
    """The same by the network: its directory is no longer known to the engine's agent."""
    place = core.offer(JOB, weights.path, weights.version, allow_public=False)
    offered = Exposure(version=NEW, host=place.host, port=place.port, checksum="")
    return replace(weights, path="/nowhere", offered=offered)


def own_courier() -> Courier:
    """The engine's agent's."""
    return Courier(SECRET, "127.0.0.1")


async def greedy(client: EngineClient, rid: str) -> Generation:
    return await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid=rid)


async def running(
    engine: RunningEngine, client: EngineClient, rid: str
) -> asyncio.Task[Generation]:
    """A long call that has sampled something."""
    asked = client.generate(input_ids=PROMPT, sampling_params=engine.long_sampling(), rid=rid)
    call = asyncio.create_task(asked)
    async with asyncio.timeout(DEADLINE_S):
        while (await client.loads())["num_active_tokens"] <= len(PROMPT):
            await asyncio.sleep(0.01)
    return call


def versions(answer: Generation) -> list[str]:
    return [span.version for span in answer.spans]


@pytest.mark.parametrize("in_flight", ["retract", "in_place", "hold"])
async def test_calls_that_run_end_whole_as_the_job_says(
    engine: RunningEngine, client: EngineClient, weights: ServedWeights, in_flight: InFlight
) -> None:
    call = await running(engine, client, f"run-{in_flight}")
    num_retracted = await load_while_serving(
        client, weights, own_courier(), in_flight, hold_s=DEADLINE_S
    )
    late = await greedy(client, f"late-{in_flight}")
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert (len(answer.output_ids), answer.finish_type) == (engine.long_tokens, "length")
    assert versions(answer) == (["1.1"] if in_flight == "hold" else ["1.1", "1.2"])
    assert (num_retracted > len(PROMPT)) == (in_flight == "retract")
    assert versions(late) == ["1.2"]
    assert (await greedy(client, f"again-{in_flight}")).output_ids == late.output_ids


async def test_a_call_longer_than_the_hold_is_aborted_and_what_it_has_is_kept(
    engine: RunningEngine, client: EngineClient, weights: ServedWeights
) -> None:
    call = await running(engine, client, "held")
    num_retracted = await load_while_serving(client, weights, own_courier(), "hold", hold_s=0.1)
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert (answer.finish_type, versions(answer)) == ("abort", ["1.1"])
    assert num_retracted >= len(PROMPT)
    assert versions(await greedy(client, "held-2")) == ["1.2"]


async def test_an_engine_whose_weights_do_not_come_serves_on_under_the_old_name(
    engine: RunningEngine, client: EngineClient, core: Courier
) -> None:
    before = await greedy(client, "miss-1")
    weights = sent(there(engine), core)
    await core.close()
    call = await running(engine, client, "miss-2")
    with pytest.raises(WeightsNotHad, match="NobodyServes"):
        await load_while_serving(client, weights, own_courier(), "retract")
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert versions(answer) == ["1.1"]
    after = await greedy(client, "miss-3")
    assert (versions(after), after.output_ids) == (["1.1"], before.output_ids)


async def test_damaged_weights_do_not_reach_the_engine(
    engine: RunningEngine, client: EngineClient, core: Courier
) -> None:
    weights = sent(there(engine), core)
    assert weights.offered is not None
    before = await client.checksum()
    place = weights.offered.host, weights.offered.port
    with relaying(place, lambda _, data: bytes(len(data))) as relay:
        host, port = relay.address
        damaged = replace(weights, offered=replace(weights.offered, host=host, port=port))
        with pytest.raises(WeightsNotHad, match="Damaged"):
            await load_while_serving(client, damaged, own_courier(), "retract")
    assert (await client.checksum(), await client.weight_version()) == (before, "1.1")


async def test_another_stacks_agent_has_no_weights(
    engine: RunningEngine, client: EngineClient, core: Courier
) -> None:
    weights = sent(there(engine), core)
    with pytest.raises(WeightsNotHad, match="NotTheJob"):
        await load_while_serving(client, weights, Courier("another", "127.0.0.1"), "retract")
    other_job = replace(weights, job="another")
    with pytest.raises(WeightsNotHad, match="NotTheJob"):
        await load_while_serving(client, other_job, own_courier(), "retract")


async def test_weights_that_are_not_the_manifests_are_found_out(
    engine: RunningEngine, client: EngineClient, core: Courier
) -> None:
    for weights in (there(engine), sent(there(engine), core)):
        wrong = replace(weights, checksum="0" * 64)
        with pytest.raises(WeightsDiffer):
            await load_while_serving(client, wrong, own_courier(), "retract")
        # Whoever is told so ends the engine; here it goes on.
        await serve_weights(client, engine.models[0], "1.1")
