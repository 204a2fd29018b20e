"""`local` answers in the shapes that the real SGLang 0.5.23 was recorded to answer in.

The recordings are made by goldens/record_sglang.py. Held equal: status, content type, every
key and the kind of every value, finish reasons, greedy tokens, and greedy logprobs to 1e-3.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.testkit.engine_cases import Record, play
from gyre.testkit.engine_server import running_engine
from gyre.testkit.tiny_model import make_tiny_model

GOLDENS = Path(__file__).parent / "goldens" / "sglang"

OF_ITS_PROCESSES = {
    "api_server_dispatch_finish_ts",
    "forward_entry_time",
    "prefill_finished_time",
    "request_finished_ts",
    "request_received_ts",
    "response_sent_to_client_ts",
    "storage_prefetch_wait",
    "storage_staging_wait",
    "decode_moments",
    "disaggregation",
    "embedding",
    "grammar",
    "memory",
    "num_prealloc_ready_tokens",
    "prealloc_ready",
    "ranks",
    "total_prefill_busy_us",
    "total_prefill_uncached_tokens",
}
"""Keys that describe SGLang's processes and features this engine has none of."""

EXACT = {"finish_reason", "object", "code", "num_retractions", "success", "status"}
EXACT_CASES = {"greedy", "cached", "stop_token", "stream", "all_logprobs", "greedy_updated"}
SKIPPED = {
    "aborted_retracted": "local keeps the tokens of a retracted request that is aborted",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    root = tmp_path_factory.mktemp("goldens")
    models = make_tiny_model(root / "m0", seed=0), make_tiny_model(root / "m1", seed=1)
    with running_engine("local", models, root / "engine.log") as engine:
        yield asyncio.run(play(engine.url, models))


def golden_names() -> list[str]:
    return sorted(path.stem for path in GOLDENS.glob("*.json"))


def test_the_recordings_are_there() -> None:
    assert len(golden_names()) > 50


@pytest.mark.parametrize("name", golden_names())
def test_local_answers_in_the_recorded_shape(name: str, records: dict[str, Record]) -> None:
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    actual = json.loads(json.dumps(records[name]))
    assert actual["status"] == golden["status"]
    assert golden["content_type"] in ("", actual["content_type"])
    if name == "stream":
        golden["body"] = like_in_length(golden["body"], actual["body"])
    assert list(differences(golden["body"], actual["body"], exact=name in EXACT_CASES)) == []


def like_in_length(golden: list[Any], actual: list[Any]) -> list[Any]:
    """The recorded event of as many tokens as each of ours: a slow reader gets several steps
    in one event, from either engine."""
    events = {event["meta_info"]["completion_tokens"]: event for event in golden[:-1]}
    aligned = [events[event["meta_info"]["completion_tokens"]] for event in actual[:-1]]
    return [*aligned, golden[-1]]


def differences(golden: Any, actual: Any, *, exact: bool, at: str = "body") -> Iterator[str]:
    """Each place where `actual` lacks a key or has another kind of value than `golden`."""
    if kind(golden) != kind(actual):
        yield f"{at}: {golden!r:.80} was recorded, got {actual!r:.80}"
    elif isinstance(golden, dict):
        for key, value in golden.items():
            if key in OF_ITS_PROCESSES:
                continue
            if key not in actual:
                yield f"{at}.{key}: missing"
            elif (key in EXACT and key != "finish_reason") or (exact and key == "output_ids"):
                if value != actual[key]:
                    yield f"{at}.{key}: {value!r} was recorded, got {actual[key]!r}"
            else:
                yield from differences(value, actual[key], exact=exact, at=f"{at}.{key}")
    elif isinstance(golden, list):
        for index, (one, other) in enumerate(zip(golden, actual, strict=False)):
            yield from differences(one, other, exact=exact, at=f"{at}[{index}]")
    elif exact and at.endswith(("[0]", "[1]")) and kind(golden) == "number":
        yield from _far_apart(golden, actual, at)


def _far_apart(golden: float, actual: float, at: str) -> Iterator[str]:
    if golden != pytest.approx(actual, abs=1e-3):
        yield f"{at}: {golden} was recorded, got {actual}"


def kind(value: Any) -> str:
    """JSON kind; integers and fractions are one."""
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, (int, float)) else type(value).__name__
