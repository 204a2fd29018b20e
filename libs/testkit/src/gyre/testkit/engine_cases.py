"""One scripted conversation with an engine, to record from one and hold another to.

`play` returns name -> `{"status", "content_type", "body"}`. The order matters: later cases rely
on what earlier ones left (weights, cache). Requests that must be caught while they run are
long, and are acted on after the engine says that they run.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

Record = dict[str, Any]

PROMPT = list(range(30, 60))
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
LONG = {"temperature": 1.0, "max_new_tokens": 1900, "ignore_eos": True}
DEADLINE_S = 120.0
MAX_TEXT = 400

SIMPLE: tuple[tuple[str, str, Any], ...] = (
    (
        "greedy",
        "/generate",
        {"input_ids": PROMPT, "sampling_params": GREEDY, "return_logprob": True},
    ),
    (
        "cached",
        "/generate",
        {"input_ids": PROMPT, "sampling_params": GREEDY, "return_logprob": True},
    ),
    ("text", "/generate", {"text": "hello world", "sampling_params": GREEDY}),
    (
        "all_logprobs",
        "/generate",
        {
            "rid": "case-all",
            "input_ids": PROMPT[:5],
            "sampling_params": {**GREEDY, "max_new_tokens": 2},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [5, 6],
            "return_text_in_logprobs": True,
            "return_prompt_token_ids": True,
        },
    ),
    ("no_new_tokens", "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 0}}),
    ("no_input", "/generate", {"sampling_params": {}}),
    ("empty_input", "/generate", {"input_ids": []}),
    ("too_long", "/generate", {"input_ids": [5] * 3000}),
    (
        "total_too_long",
        "/generate",
        {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4000}},
    ),
    (
        "negative_temperature",
        "/generate",
        {"input_ids": [5], "sampling_params": {"temperature": -1}},
    ),
    ("unknown_parameter", "/generate", {"input_ids": [5], "sampling_params": {"foo": 1}}),
    ("wrong_type", "/generate", {"input_ids": "abc"}),
    ("not_found", "/nope", {}),
    ("abort_unknown", "/abort_request", {"rid": "nobody"}),
    ("abort_wrong_type", "/abort_request", {"rid": 5}),
    ("pause_wrong_mode", "/pause_generation", {"mode": "x"}),
    ("continue", "/continue_generation", {}),
    ("flush", "/flush_cache", None),
    ("update_missing_field", "/update_weights_from_disk", {}),
    ("update_bad_path", "/update_weights_from_disk", {"model_path": "/nonexistent"}),
    ("begin_session", "/begin_weight_update", {"selector": "all"}),
    ("begin_session_twice", "/begin_weight_update", {}),
    ("end_session", "/end_weight_update", {}),
    ("end_session_twice", "/end_weight_update", {}),
    ("version", "/update_weight_version", {"new_version": "w0", "abort_all_requests": False}),
    ("version_missing", "/update_weight_version", {}),
    ("checksum", "/weights_checker", {"action": "checksum"}),
    ("release_memory", "/release_memory_occupation", {"tags": ["kv_cache"]}),
    ("resume_memory", "/resume_memory_occupation", {"tags": ["kv_cache"]}),
)
"""(name, path, JSON body) of single POSTs; None is no body."""


async def play(url: str, models: tuple[Path, Path]) -> dict[str, Record]:
    """Run every case against an engine that serves `models[0]` as `w0`."""
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
        records = {
            name: _record(
                await http.post(path, json=body) if body is not None else await http.post(path)
            )
            for name, path, body in SIMPLE
        }
        for name, path in (
            ("model_info", "/model_info"),
            ("loads", "/v1/loads"),
            ("ready", "/ready"),
        ):
            records[name] = _record(await http.get(path))
        records["stop_token"] = await _stop_token(http, records["greedy"])
        records["stream"] = await _stream(http, PROMPT)
        records["stream_error"] = await _stream(http, [5] * 3000)
        records |= await _aborts(http)
        records |= await _pauses(http)
        records |= await _updates(http, models)
    return records


async def _stop_token(http: httpx.AsyncClient, greedy: Record) -> Record:
    stop = greedy["body"]["output_ids"][2]
    params = {"temperature": 0, "max_new_tokens": 6, "stop_token_ids": [stop]}
    body = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
    return _record(await http.post("/generate", json=body))


async def _stream(http: httpx.AsyncClient, prompt: list[int]) -> Record:
    """A stream's record has its events' JSON in `body`, the last one as the literal text."""
    body = {"input_ids": prompt, "sampling_params": GREEDY, "return_logprob": True, "stream": True}
    response = await http.post("/generate", json=body)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    record = _record(response)
    record["body"] = [json.loads(line) if line.startswith("{") else line for line in lines]
    return record


async def _aborts(http: httpx.AsyncClient) -> dict[str, Record]:
    running = _start(http, "case-run")
    await _until_running(http)
    duplicate = _record(await http.post("/generate", json={"rid": "case-run", "input_ids": [5]}))
    busy = _record(await http.post("/flush_cache"))
    await http.post("/abort_request", json={"rid": "case-run"})
    aborted = _record(await running)
    queued = _start(http, "case-queue")
    await _until_running(http)
    await http.post("/pause_generation", json={"mode": "retract"})
    await http.post("/abort_request", json={"rid": "case-queue"})
    await http.post("/continue_generation", json={})
    return {
        "duplicate_rid": duplicate,
        "flush_busy": busy,
        "aborted_running": aborted,
        "aborted_retracted": _record(await queued),
    }


async def _pauses(http: httpx.AsyncClient) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for mode in ("in_place", "retract"):
        call = _start(http, f"case-{mode}")
        await _until_running(http)
        records[f"pause_{mode}"] = _record(
            await http.post("/pause_generation", json={"mode": mode})
        )
        records[f"flush_{mode}"] = _record(await http.post("/flush_cache"))
        await http.post("/continue_generation", json={})
        records[f"continued_{mode}"] = _record(await call)
    return records


async def _updates(http: httpx.AsyncClient, models: tuple[Path, Path]) -> dict[str, Record]:
    first, second = str(models[0]), str(models[1])
    records = {"update": await _update(http, second, "w1")}
    generate = {"input_ids": PROMPT, "sampling_params": GREEDY, "return_logprob": True}
    records["greedy_updated"] = _record(await http.post("/generate", json=generate))
    await _update(http, first, "w0")
    for mode, flush in (("retract", True), ("in_place", False), ("in_place", True)):
        call = _start(http, f"case-{mode}-{flush}")
        await _until_running(http)
        await http.post("/pause_generation", json={"mode": mode})
        name = f"{mode}_{'flush' if flush else 'keep'}"
        records[f"update_{name}"] = await _update(http, second, "w1", flush_cache=flush)
        await http.post("/continue_generation", json={})
        records[f"updated_{name}"] = _record(await call)
        await _update(http, first, "w0")
    return records


async def _update(http: httpx.AsyncClient, path: str, version: str, **more: Any) -> Record:
    body = {"model_path": path, "weight_version": version, **more}
    return _record(await http.post("/update_weights_from_disk", json=body))


def _start(http: httpx.AsyncClient, rid: str) -> asyncio.Task[httpx.Response]:
    body = {"rid": rid, "input_ids": PROMPT, "sampling_params": LONG, "return_logprob": True}
    return asyncio.create_task(http.post("/generate", json=body))


async def _until_running(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not (await http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"]:
            await asyncio.sleep(0.02)


def _record(response: httpx.Response) -> Record:
    content_type = response.headers.get("content-type", "").split(";")[0]
    body: Any = response.text
    if content_type == "application/json":
        body = response.json()
    return {"status": response.status_code, "content_type": content_type, "body": body}


def shorten(value: Any, limit: int = 8) -> Any:
    """Cut long lists and texts, so that a recording stays readable; name no file of this
    machine."""
    if isinstance(value, str):
        return re.sub(r'File "[^"]*"', 'File "..."', value)[:MAX_TEXT]
    if isinstance(value, list):
        return [shorten(item, limit) for item in value[:limit]]
    if isinstance(value, Mapping):
        return {key: shorten(item, limit) for key, item in value.items()}
    return value
