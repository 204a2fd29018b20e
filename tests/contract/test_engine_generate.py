"""What `/generate` answers, for whichever engine runs."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError
from gyre.testkit.engine_server import CONTEXT_TOKENS, RunningEngine

PROMPT = list(range(30, 60))
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url) as made:
        yield made


async def post(engine: RunningEngine, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        return await http.post("/generate", json=body)


async def test_an_answer_carries_ids_logprobs_and_version(client: EngineClient) -> None:
    answer = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="a1")
    assert len(answer.output_ids) == len(answer.logprobs) == 8
    assert all(value <= 0 for value in answer.logprobs)
    assert answer.finish_reason == {"type": "length", "length": 8}
    assert (answer.prompt_tokens, answer.num_retractions) == (30, 0)
    assert answer.weight_version == "w0"
    assert [(s.version, s.start, s.end) for s in answer.spans] == [("w0", 0, 8)]
    meta = answer.meta_info
    assert meta["id"] == "a1"
    assert meta["completion_tokens"] == meta["output_token_logprobs_length"] == 8
    assert [entry[1] for entry in meta["output_token_logprobs"]] == list(answer.output_ids)
    assert all(entry[2] is None for entry in meta["output_token_logprobs"])
    assert meta["e2e_latency"] > 0


async def test_a_repeated_prompt_hits_all_but_its_last_token(client: EngineClient) -> None:
    await client.flush_cache(wait_s=5)
    first = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="c1")
    second = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="c2")
    assert (first.cached_tokens, second.cached_tokens) == (0, len(PROMPT) - 1)
    assert second.output_ids == first.output_ids


async def test_text_prompts_are_encoded_and_answers_decoded(engine: RunningEngine) -> None:
    body = {"text": "hello world", "sampling_params": {"temperature": 0, "max_new_tokens": 3}}
    answer = (await post(engine, body)).json()
    assert answer["meta_info"]["prompt_tokens"] > 1
    assert isinstance(answer["text"], str)
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_logprobs_are_after_temperature_and_before_top_p(client: EngineClient) -> None:
    """A nucleus of one token still reports that token's probability under the whole
    distribution at the request's temperature."""
    values = {}
    for temperature in (1.0, 0.5):
        answer = await client.generate(
            input_ids=PROMPT,
            sampling_params={"temperature": temperature, "top_p": 1e-6, "max_new_tokens": 1},
            rid=f"t{temperature}",
        )
        values[temperature] = answer.logprobs[0]
    assert values[1.0] < -0.01
    assert values[0.5] > values[1.0]


async def test_greedy_logprobs_are_those_of_temperature_one(client: EngineClient) -> None:
    greedy = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="g1")
    nucleus = await client.generate(
        input_ids=PROMPT,
        sampling_params={"temperature": 1, "top_k": 1, "max_new_tokens": 8, "ignore_eos": True},
        rid="g2",
    )
    assert nucleus.output_ids == greedy.output_ids
    assert nucleus.logprobs == pytest.approx(greedy.logprobs, abs=1e-3)


async def test_top_logprobs_and_prompt_logprobs_line_up(engine: RunningEngine) -> None:
    body = {
        "input_ids": PROMPT[:6],
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 2, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5, 6],
        "return_text_in_logprobs": True,
        "return_prompt_token_ids": True,
    }
    answer = (await post(engine, body)).json()
    meta = answer["meta_info"]
    assert answer["prompt_token_ids"] == PROMPT[:6]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == PROMPT[:6]
    assert meta["input_token_logprobs"][0][0] is None
    assert all(isinstance(entry[2], str) for entry in meta["output_token_logprobs"])
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["input_top_logprobs"][1:]] == [2] * 5
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2]
    for row in meta["output_top_logprobs"]:
        assert row[0][0] >= row[1][0]
    assert [[entry[1] for entry in row] for row in meta["output_token_ids_logprobs"]] == [
        [5, 6]
    ] * 2


async def test_a_stop_token_ends_and_stays_in_the_ids(client: EngineClient) -> None:
    free = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid="s0")
    third = free.output_ids[2]
    at = free.output_ids.index(third)
    stopped = await client.generate(
        input_ids=PROMPT,
        sampling_params={"temperature": 0, "max_new_tokens": 8, "stop_token_ids": [third]},
        rid="s1",
    )
    assert stopped.finish_reason == {"type": "stop", "matched": third}
    assert stopped.output_ids == free.output_ids[: at + 1]
    assert len(stopped.logprobs) == at + 1


async def test_a_stop_string_ends_and_is_cut_from_the_text(engine: RunningEngine) -> None:
    free = (await post(engine, {"input_ids": PROMPT, "sampling_params": GREEDY})).json()
    stop = next(char for char in free["text"][1:] if char.isascii() and char.isprintable())
    body = {"input_ids": PROMPT, "sampling_params": {**GREEDY, "stop": [stop]}}
    stopped = (await post(engine, body)).json()
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stop not in stopped["text"]
    assert free["output_ids"][: len(stopped["output_ids"])] == stopped["output_ids"]


async def test_a_stream_is_cumulative_and_ends_with_done(engine: RunningEngine) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": GREEDY,
        "stream": True,
        "return_logprob": True,
    }
    async with (
        httpx.AsyncClient(base_url=engine.url, timeout=60) as http,
        http.stream("POST", "/generate", json=body) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    whole = (await post(engine, {**body, "stream": False})).json()
    for event in events:
        count = event["meta_info"]["completion_tokens"]
        assert event["output_ids"] == whole["output_ids"][:count]
        assert len(event["meta_info"]["output_token_logprobs"]) == count
        assert whole["text"].startswith(event["text"])
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert events[-1]["output_ids"] == whole["output_ids"]
    assert events[-1]["meta_info"]["weight_versions"] == [{"version": "w0", "start": 0, "end": 8}]


async def test_an_error_in_a_stream_arrives_with_status_200(engine: RunningEngine) -> None:
    body = {"input_ids": [5] * (CONTEXT_TOKENS + 5), "sampling_params": {}, "stream": True}
    response = await post(engine, body)
    assert response.status_code == 200
    first, *_, last = [line for line in response.text.splitlines() if line]
    error = json.loads(first.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
    assert last == "data: [DONE]"
    async with EngineClient(engine.url) as client:
        with pytest.raises(EngineRefusedError, match="longer than"):
            async for _ in client.stream(input_ids=body["input_ids"], sampling_params={}, rid="e1"):
                pass


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"sampling_params": {}}, "should be provided"),
        ({"input_ids": [5] * 3000}, "longer than"),
        ({"input_ids": [5] * 10, "sampling_params": {"max_new_tokens": 4000}}, "exceeds"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [5], "sampling_params": {"top_p": 2}}, "top_p"),
        ({"input_ids": [5], "sampling_params": {"top_k": 0}}, "top_k"),
        ({"input_ids": []}, "empty"),
    ],
)
async def test_a_bad_value_is_a_400_that_says_so(
    engine: RunningEngine, body: dict[str, Any], says: str
) -> None:
    response = await post(engine, body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


async def test_an_unknown_sampling_parameter_is_a_400_in_a_stream_too(
    engine: RunningEngine,
) -> None:
    for stream in (False, True):
        body = {"input_ids": [5], "stream": stream, "sampling_params": {"foo": 1}}
        response = await post(engine, body)
        assert response.status_code == 400
        assert "foo" in response.json()["error"]


async def test_a_body_of_the_wrong_shape_is_a_schema_error(engine: RunningEngine) -> None:
    for body in ({"input_ids": "abc"}, {"input_ids": [5], "sampling_params": 3}):
        response = await post(engine, body)
        assert response.status_code == 400
        assert response.json()["object"] == "error"
    async with httpx.AsyncClient(base_url=engine.url) as http:
        response = await http.post(
            "/generate", content=b"{bad", headers={"content-type": "application/json"}
        )
    assert (response.status_code, response.json()["object"]) == (400, "error")


async def test_an_unknown_top_level_field_is_ignored(engine: RunningEngine) -> None:
    body = {"input_ids": [5], "no_such_field": 1, "sampling_params": {"max_new_tokens": 1}}
    assert (await post(engine, body)).status_code == 200


async def test_an_unknown_path_is_a_404_with_detail(engine: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url) as http:
        response = await http.post("/nope", json={})
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


async def test_local_survives_a_token_outside_the_vocabulary(engine: RunningEngine) -> None:
    """The real server dies of it; the client must never send it."""
    if engine.kind != "local":
        pytest.skip("kills the real server")
    for bad in (512, -1, 10**12):
        response = await post(engine, {"input_ids": [5, bad]})
        assert response.status_code == 400
        assert str(bad) in response.json()["error"]["message"]
    assert (await post(engine, {"input_ids": [5]})).status_code == 200


async def test_one_seed_gives_one_answer(engine: RunningEngine, client: EngineClient) -> None:
    if engine.kind != "local":
        pytest.skip("the real server honours it in deterministic mode only")
    params = {"temperature": 1.0, "max_new_tokens": 20, "ignore_eos": True, "sampling_seed": 7}
    one = await client.generate(input_ids=PROMPT, sampling_params=params, rid="d1")
    two = await client.generate(input_ids=PROMPT, sampling_params=params, rid="d2")
    other = await client.generate(
        input_ids=PROMPT, sampling_params={**params, "sampling_seed": 8}, rid="d3"
    )
    assert one.output_ids == two.output_ids != other.output_ids


async def test_samples_follow_the_reported_distribution(
    engine: RunningEngine, client: EngineClient
) -> None:
    """The most likely token comes as often as its reported probability says."""
    params = {"temperature": 0.4, "max_new_tokens": 1, "ignore_eos": True}
    count = 64
    answers = [
        await client.generate(input_ids=PROMPT, sampling_params=params, rid=f"e{index:03d}")
        for index in range(count)
    ]
    body = {"input_ids": PROMPT, "sampling_params": params}
    body |= {"return_logprob": True, "top_logprobs_num": 1}
    meta = (await post(engine, body)).json()["meta_info"]
    logprob, top, _ = meta["output_top_logprobs"][0][0]
    probability = math.exp(logprob)
    observed = sum(answer.output_ids[0] == top for answer in answers) / count
    spread = math.sqrt(probability * (1 - probability) / count)
    assert abs(observed - probability) < 4 * spread
    for answer in answers:
        if answer.output_ids[0] == top:
            assert answer.logprobs[0] == pytest.approx(logprob, abs=1e-3)
