"""Answers of the real SGLang 0.5.23, recorded, and how another engine's answers are held to them.

tests/contract/goldens/record_sglang.py makes the recordings. Held equal: status, content type,
every key and the kind of every value, finish reasons, greedy tokens, and greedy logprobs to 1e-3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gyre.testkit.engine_cases import Record

OF_ITS_PROCESSES = frozenset(
    {
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
)
"""Keys that describe SGLang's processes and features that `local` has none of."""

EXACT = {"finish_reason", "object", "code", "num_retractions", "success", "status"}
EXACT_CASES = {"greedy", "cached", "stop_token", "stream", "all_logprobs", "greedy_updated"}


def golden_names(folder: Path) -> list[str]:
    """Of the cases that are recorded in `folder`."""
    return sorted(path.stem for path in folder.glob("*.json"))


def unlike_the_golden(
    folder: Path, name: str, record: Record, *, also_of_its_processes: bool = False
) -> list[str]:
    """Where the answer in `record` is not as the recorded one of this case. also_of_its_processes:
    keys that only SGLang has are asked for too."""
    golden = json.loads((folder / f"{name}.json").read_text())
    actual = json.loads(json.dumps(record))
    wrong = [
        f"{key}: {golden[key]!r} was recorded, got {actual[key]!r}"
        for key in ("status", "content_type")
        if golden[key] not in ("", actual[key])
    ]
    if name == "stream":
        golden["body"] = _like_in_length(golden["body"], actual["body"])
    ignored: frozenset[str] = frozenset() if also_of_its_processes else OF_ITS_PROCESSES
    exact = name in EXACT_CASES
    found = _differences(golden["body"], actual["body"], exact=exact, ignored=ignored)
    return [*wrong, *found]


def _like_in_length(golden: list[Any], actual: list[Any]) -> list[Any]:
    """The recorded event of as many tokens as each of ours: a slow reader gets several steps
    in one event, from either engine."""
    events = {event["meta_info"]["completion_tokens"]: event for event in golden[:-1]}
    aligned = [events[event["meta_info"]["completion_tokens"]] for event in actual[:-1]]
    return [*aligned, golden[-1]]


def _differences(
    golden: Any, actual: Any, *, exact: bool, ignored: frozenset[str], at: str = "body"
) -> Iterator[str]:
    """Each place where `actual` lacks a key or has another kind of value than `golden`."""
    deeper = partial(_differences, exact=exact, ignored=ignored)
    if _kind(golden) != _kind(actual):
        yield f"{at}: {golden!r:.80} was recorded, got {actual!r:.80}"
    elif isinstance(golden, dict):
        for key, value in golden.items():
            if key in ignored:
                continue
            if key not in actual:
                yield f"{at}.{key}: missing"
            elif (key in EXACT and key != "finish_reason") or (exact and key == "output_ids"):
                if value != actual[key]:
                    yield f"{at}.{key}: {value!r} was recorded, got {actual[key]!r}"
            else:
                yield from deeper(value, actual[key], at=f"{at}.{key}")
    elif isinstance(golden, list):
        for index, (one, other) in enumerate(zip(golden, actual, strict=False)):
            yield from deeper(one, other, at=f"{at}[{index}]")
    elif exact and at.endswith(("[0]", "[1]")) and _kind(golden) == "number":
        yield from _far_apart(golden, actual, at)


def _far_apart(golden: float, actual: float, at: str) -> Iterator[str]:
    if golden != pytest.approx(actual, abs=1e-3):
        yield f"{at}: {golden} was recorded, got {actual}"


def _kind(value: Any) -> str:
    """JSON kind; integers and fractions are one."""
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, (int, float)) else type(value).__name__
