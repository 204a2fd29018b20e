"""The JSON that `/generate` answers with, built from a request's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gyre.cell_agent.engine.local.request import Ranked, Request
from gyre.cell_agent.engine.local.tokenizer import TextCodec


def build_response(
    request: Request, codec: TextCodec, current_version: str, *, from_token: int = 0
) -> dict[str, Any]:
    """`{"text", "output_ids", "meta_info"}` of what there is now.

    Everything is cumulative; with `from_token` > 0 (incremental streaming) ids, logprobs and
    text hold only what came after that many tokens. `weight_versions` and `e2e_latency`
    come with the final message only.
    """
    # Read `finish` before the ids: once it is set the ids are complete (see request.py).
    finish = request.finish
    count = len(request.output_ids)
    ids = request.output_ids[:count]
    text = codec.output_text(request, ids, finish)
    if from_token:
        text = text.removeprefix(codec.output_text(request, ids[:from_token], None))
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": finish.to_json() if finish else None,
        "prompt_tokens": len(request.prompt),
        "weight_version": request.last_version if finish else current_version,
        "num_retractions": request.num_retractions,
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": request.cached_tokens,
        "cached_tokens_details": _cache_details(request.cached_tokens),
        "dp_rank": None,
    }
    if request.asked.return_logprob:
        meta |= _logprobs(request, codec, count, from_token)
    if request.started_at is not None:
        meta["queue_time"] = request.started_at - request.created_at
    if finish is not None:
        meta["weight_versions"] = request.version_spans()
        meta |= _latencies(request, request.finished_at)
    body = {"text": text, "output_ids": ids[from_token:], "meta_info": meta}
    if request.asked.return_prompt_token_ids:
        body["prompt_token_ids"] = list(request.prompt)
    return body


def _logprobs(request: Request, codec: TextCodec, count: int, from_token: int) -> dict[str, Any]:
    asked = request.asked
    texts = codec if asked.return_text_in_logprobs else None
    tail = slice(from_token, count)
    prompt_ids = request.prompt[len(request.prompt) - len(request.prompt_logprobs) :]
    fields: dict[str, Any] = {
        "input_token_logprobs": _entries(request.prompt_logprobs, prompt_ids, texts),
        "output_token_logprobs": _entries(request.logprobs[tail], request.output_ids[tail], texts),
        "output_token_logprobs_length": count,
    }
    if asked.top_logprobs_num:
        fields["input_top_logprobs"] = _ranked(request.prompt_top, texts)
        fields["output_top_logprobs"] = _ranked(request.top[tail], texts)
    if asked.token_ids_logprob is not None:
        fields["input_token_ids_logprobs"] = _ranked(request.prompt_chosen, texts)
        fields["output_token_ids_logprobs"] = _ranked(request.chosen[tail], texts)
    return fields


def _entries(
    values: Sequence[float | None], ids: Sequence[int], codec: TextCodec | None
) -> list[tuple[float | None, int, str | None]]:
    """`[logprob, token id, text | null]` for each token."""
    return [(value, token, _text(token, codec)) for value, token in zip(values, ids, strict=True)]


def _ranked(
    rows: Sequence[Ranked | None], codec: TextCodec | None
) -> list[list[tuple[float, int, str | None]] | None]:
    return [
        None if row is None else [(value, token, _text(token, codec)) for value, token in row]
        for row in rows
    ]


def _text(token: int, codec: TextCodec | None) -> str | None:
    return None if codec is None else codec.decode([token], skip_special_tokens=False)


def _cache_details(count: int) -> dict[str, int] | None:
    return {"device": count, "host": 0} if count else None


def _latencies(request: Request, ended_at: float | None) -> dict[str, float]:
    """Seconds, and tokens a second; only `e2e_latency` when the request never ran."""
    assert ended_at is not None
    fields = {"e2e_latency": ended_at - request.created_at}
    if request.first_token_at is not None:
        fields["first_token_latency"] = request.first_token_at - request.created_at
    decoded = len(request.output_ids) - 1
    if decoded > 0 and request.first_token_at is not None and ended_at > request.first_token_at:
        fields["decode_throughput"] = decoded / (ended_at - request.first_token_at)
    return fields
