"""Weights sent as tensors, and weights confirmed by checksum, for whichever engine runs."""

from __future__ import annotations

import asyncio
import base64
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save
from structlog.testing import capture_logs

from gyre.cell_agent.engine.base import (
    BadWeightsError,
    EngineClient,
    EngineRefusedError,
    WeightsDiffer,
)
from gyre.cell_agent.engine.sglang.client import SglangClient
from gyre.cell_agent.engine.tensors import TensorView, named_checksum, read_directory
from gyre.cell_agent.engine.update_group import Place, UpdateGroup
from gyre.testkit.engine_server import RunningEngine
from gyre.testkit.engine_use import PROMPT, greedy, serve_weights
from gyre.testkit.nats_server import free_port
from gyre.testkit.switching_cell import Refusing

NORM = "model.norm.weight"
# The tiny model has 0.5 MB: several parts, and one tensor that is larger than a part.
BUCKET_BYTES = 50_000
DEADLINE_S = 60.0


async def test_tensors_in_parts_are_the_same_weights_as_from_a_directory(
    engine: RunningEngine, client: EngineClient
) -> None:
    await serve_weights(client, engine.models[1], "w1")
    expected = await greedy(client, "t1"), await client.checksum()
    await serve_weights(client, engine.models[0], "w0")
    assert await client.checksum() != expected[1]
    await client.pause("retract")
    await client.update_weights_from_tensors(
        read_directory(engine.models[1]), weight_version="t1", bucket_bytes=BUCKET_BYTES
    )
    await client.resume()
    assert await client.weight_version() == "t1"
    assert (await greedy(client, "t2"), await client.checksum()) == expected


async def test_a_call_goes_on_under_the_weights_that_were_sent(
    engine: RunningEngine, client: EngineClient
) -> None:
    call = asyncio.create_task(
        client.generate(input_ids=PROMPT, sampling_params=engine.long_sampling(), rid="spans-1")
    )
    async with asyncio.timeout(DEADLINE_S):
        while (await client.loads())["num_running_reqs"] < 1:
            await asyncio.sleep(0.01)
    await client.pause("retract")
    await client.update_weights_from_tensors(
        read_directory(engine.models[1]), weight_version="w1", bucket_bytes=BUCKET_BYTES
    )
    await client.resume()
    answer = await asyncio.wait_for(call, DEADLINE_S)
    assert [span.version for span in answer.spans] == ["w0", "w1"]
    assert answer.spans[1].end == engine.long_tokens


async def test_what_an_engine_serves_is_confirmed_by_the_checksum_of_a_checkpoint(
    engine: RunningEngine, client: EngineClient
) -> None:
    zero, one = (read_directory(model) for model in engine.models)
    await client.confirm_directory(str(engine.models[0]), named_checksum(zero))
    await client.confirm_tensors(zero, named_checksum(zero))
    with pytest.raises(WeightsDiffer):
        await client.confirm_directory(str(engine.models[1]), named_checksum(one))
    with pytest.raises(WeightsDiffer):
        await client.confirm_tensors(one, named_checksum(one))
    with pytest.raises(WeightsDiffer):
        await client.confirm_directory(str(engine.models[0]), named_checksum(one))


async def test_of_an_engine_on_a_gpu_only_what_was_sent_is_checked_and_its_own_digest_is_logged(
    engine: RunningEngine, client: EngineClient
) -> None:
    """The client alone is of a GPU's engine: whatever this one serves, nothing is compared."""
    zero, one = (named_checksum(read_directory(model)) for model in engine.models)
    async with SglangClient(engine.url, device="cuda") as on_gpu:
        with capture_logs() as logs:
            await on_gpu.confirm_directory(str(engine.models[1]), one)
        with pytest.raises(WeightsDiffer):
            await on_gpu.confirm_directory(str(engine.models[1]), zero)
    (unchecked,) = [entry for entry in logs if entry["event"] == "engine_weights_unchecked"]
    assert unchecked["engine_digest"] == await client.checksum()
    assert unchecked["version"] == "w0"


def _without_one(weights: dict[str, TensorView]) -> dict[str, TensorView]:
    return {name: view for name, view in weights.items() if name != NORM}


def _with_another(weights: dict[str, TensorView]) -> dict[str, TensorView]:
    return weights | {"nope.weight": replace(weights[NORM], name="nope.weight")}


def _misshapen(weights: dict[str, TensorView]) -> dict[str, TensorView]:
    return weights | {NORM: replace(weights[NORM], shape=(32, 2))}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_without_one, "model.norm.weight is missing"),
        (_with_another, "nope.weight is no parameter"),
        (_misshapen, "model.norm.weight has the shape"),
    ],
)
async def test_tensors_that_are_not_the_models_are_never_sent(
    engine: RunningEngine, client: EngineClient, spoil: Any, says: str
) -> None:
    before = await client.checksum()
    await client.pause("retract")
    with pytest.raises(BadWeightsError, match=says):
        await client.update_weights_from_tensors(
            spoil(read_directory(engine.models[1])), weight_version="w9"
        )
    await client.resume()
    assert (await client.checksum(), await client.weight_version()) == (before, "w0")


async def test_after_a_refused_part_all_can_be_sent_again(
    engine: RunningEngine, client: EngineClient
) -> None:
    await serve_weights(client, engine.models[1], "w1")
    expected = await client.checksum()
    await serve_weights(client, engine.models[0], "w0")
    weights = read_directory(engine.models[1])
    await client.pause("retract")
    inner = client.http._transport
    client.http._transport = Refusing(inner, {"/update_weights_from_tensor": 1})
    try:
        with pytest.raises(EngineRefusedError, match="refused on the way"):
            await client.update_weights_from_tensors(weights, weight_version="t1")
        await client.update_weights_from_tensors(weights, weight_version="t1")
    finally:
        client.http._transport = inner
    await client.resume()
    assert (await client.checksum(), await client.weight_version()) == (expected, "t1")


async def test_weights_broadcast_in_a_group_are_the_same_as_from_a_directory(
    engine: RunningEngine, client: EngineClient
) -> None:
    await serve_weights(client, engine.models[1], "w1")
    expected = await greedy(client, "d1"), await client.checksum()
    await serve_weights(client, engine.models[0], "w0")
    sent = load_file(engine.models[1] / "model.safetensors")
    views = read_directory(engine.models[1])
    place = Place(
        host="127.0.0.1", own_host="127.0.0.1", port=free_port(), rank=0, size=2, name="news"
    )
    meeting = asyncio.create_task(asyncio.to_thread(UpdateGroup, place, timeout_s=DEADLINE_S))
    await client.join_update_group("127.0.0.1", place.port, rank=1, size=2, name="news")
    group = await meeting
    for version in ("d1", "d2"):
        await client.pause("retract")
        sending = asyncio.create_task(asyncio.to_thread(group.send, [sent[name] for name in views]))
        await client.update_weights_from_group(
            list(views.values()), group="news", weight_version=version
        )
        await sending
        await client.resume()
    assert await client.weight_version() == "d2"
    assert (await greedy(client, "d2"), await client.checksum()) == expected
    await client.leave_update_group("news")
    group.close()
    with pytest.raises(EngineRefusedError, match="does not exist"):
        await client.leave_update_group("news")


async def test_a_session_is_opened_and_closed_once(engine: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, timeout=30) as http:
        opened = await http.post("/begin_weight_update", json={"selector": "all"})
        twice = await http.post("/begin_weight_update", json={})
        closed = await http.post("/end_weight_update", json={})
        again = await http.post("/end_weight_update", json={})
    assert [r.status_code for r in (opened, twice, closed, again)] == [200, 400, 200, 400]


# From here on what a client never sends: `local` refuses it, the real server dies of some of it.


@pytest.fixture
def local_only(engine: RunningEngine) -> None:
    if engine.kind != "local":
        pytest.skip("the real server takes pickles, and dies of a wrong shape")


async def send_tensors(
    url: str, payload: bytes, *, session: bool = True, **more: Any
) -> httpx.Response:
    body = {"serialized_named_tensors": [base64.b64encode(payload).decode()], **more}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        if session:
            assert (await http.post("/begin_weight_update", json={})).status_code == 200
        answer = await http.post("/update_weights_from_tensor", json=body)
        if session:
            assert (await http.post("/end_weight_update", json={})).status_code == 200
    return answer


@pytest.mark.usefixtures("local_only")
async def test_a_part_of_the_parameters_may_be_updated(
    engine: RunningEngine, client: EngineClient
) -> None:
    state = load_file(Path(engine.models[0], "model.safetensors"))
    changed = {"model.norm.weight": state["model.norm.weight"] * 2}
    before = await client.checksum()
    assert (await send_tensors(engine.url, save(changed))).status_code == 200
    assert await client.checksum() != before


@pytest.mark.usefixtures("local_only")
@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (pickle.dumps([("model.norm.weight", [1.0])]), "safetensors"),
        (save({"model.norm.weight": torch.zeros(3)}), "wrong shape"),
        (save({"nope.weight": torch.zeros(3)}), "unknown parameters"),
    ],
)
async def test_tensors_that_do_not_fit_are_refused_and_change_nothing(
    engine: RunningEngine, client: EngineClient, payload: bytes, says: str
) -> None:
    before = await client.checksum()
    answer = await send_tensors(engine.url, payload)
    assert answer.status_code == 400
    assert answer.json()["success"] is False
    assert says in answer.json()["message"]
    assert await client.checksum() == before


@pytest.mark.usefixtures("local_only")
async def test_a_tensor_update_needs_a_session(engine: RunningEngine, client: EngineClient) -> None:
    payload = save({"model.norm.weight": torch.ones(64)})
    answer = await send_tensors(engine.url, payload, session=False)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
