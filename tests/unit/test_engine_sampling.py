"""Sampling parameters and draws of the local engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gyre.cell_agent.engine.local.errors import BadRequestError, SchemaError
from gyre.cell_agent.engine.local.params import parse_generate, parse_sampling
from gyre.cell_agent.engine.local.sampling import build_batch, sample, seeded_draw

VOCAB = 50


def draw_many(logits: torch.Tensor, raw: dict[str, Any], count: int) -> torch.Tensor:
    """Frequencies [V] over evenly spaced draws, which cover the distribution exactly."""
    rows = [parse_sampling(raw, VOCAB)] * count
    draws = [(index + 0.5) / count for index in range(count)]
    ids, _ = sample(logits.repeat(count, 1), build_batch(rows, VOCAB), draws)
    return torch.bincount(ids, minlength=VOCAB) / count


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2


def test_frequencies_are_the_tempered_softmax(logits: torch.Tensor) -> None:
    expected = (logits / 0.7).softmax(-1)
    actual = draw_many(logits, {"temperature": 0.7}, 4000)
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("raw", "kept"),
    [({"top_k": 3}, 3), ({"top_p": 1e-9}, 1), ({"min_p": 1.0}, 1), ({"top_k": -1}, VOCAB)],
)
def test_filters_keep_the_most_likely_and_renormalise(
    logits: torch.Tensor, raw: dict[str, Any], kept: int
) -> None:
    probabilities = logits.softmax(-1)
    top = probabilities.topk(kept).indices
    expected = torch.zeros(VOCAB)
    expected[top] = probabilities[top] / probabilities[top].sum()
    torch.testing.assert_close(draw_many(logits, raw, 4000), expected, atol=1e-3, rtol=0)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    rows = [parse_sampling({"top_p": 0.7}, 4)] * 100
    ids, _ = sample(logits.repeat(100, 1), build_batch(rows, 4), [i / 100 for i in range(100)])
    assert set(ids.tolist()) == {0, 1}


def test_a_row_does_not_depend_on_its_batch(logits: torch.Tensor) -> None:
    one, other = parse_sampling({"temperature": 0.6}, VOCAB), parse_sampling({"top_k": 2}, VOCAB)
    alone, alone_logprobs = sample(logits[None], build_batch([one], VOCAB), [0.3])
    mixed = build_batch([other, one, parse_sampling({"temperature": 0}, VOCAB)], VOCAB)
    ids, logprobs = sample(logits.repeat(3, 1), mixed, [0.9, 0.3, 0.1])
    assert ids[1] == alone[0]
    assert ids[2] == logits.argmax()
    torch.testing.assert_close(logprobs[1], alone_logprobs[0])


def test_an_impossible_token_is_never_drawn() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf")])
    rows = [parse_sampling({}, 3)] * 3
    ids, _ = sample(logits.repeat(3, 1), build_batch(rows, 3), [0.0, 0.5, 1 - 2**-53])
    assert ids.tolist() == [1, 1, 1]


def test_a_seed_gives_the_same_draw_at_the_same_position() -> None:
    draws = [seeded_draw(7, position) for position in range(2000)]
    assert draws == [seeded_draw(7, position) for position in range(2000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / 2000 - 0.5) < 0.03
    assert draws[0] != seeded_draw(8, 0)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"temprature": 1}, "temprature"),
        ({"frequency_penalty": 0.5}, "not supported"),
        ({"json_schema": "{}"}, "not supported"),
        ({"n": 2}, "not supported"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"99": 1}}, "logit_bias"),
        ({"sampling_seed": 2**63}, "sampling_seed"),
    ],
)
def test_a_value_that_would_falsify_the_answer_is_refused(
    sampling: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRequestError, match=says):
        parse_sampling(sampling, VOCAB)


def test_neutral_values_of_what_is_not_computed_are_accepted() -> None:
    raw = {"frequency_penalty": 0.0, "repetition_penalty": 1.0, "n": 1, "json_schema": None}
    assert parse_sampling(raw, VOCAB) == parse_sampling({}, VOCAB) == parse_sampling(None, VOCAB)


@pytest.mark.parametrize(
    "body", [[], {"input_ids": "x"}, {"input_ids": [1.5]}, {"input_ids": [1], "rid": 3}]
)
def test_a_body_of_the_wrong_shape_is_a_schema_error(body: Any) -> None:
    with pytest.raises(SchemaError):
        parse_generate(body, VOCAB)


def test_several_prompts_in_one_call_are_refused() -> None:
    with pytest.raises(BadRequestError, match="one prompt"):
        parse_generate({"input_ids": [[1], [2]]}, VOCAB)
