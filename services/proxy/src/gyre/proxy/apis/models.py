"""The list of models: the one policy, in OpenAI's form or, for its clients, in Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from gyre.contracts.job import JobSpec
from gyre.proxy.apis.base import bearer

_POLICY = "policy"


def key(headers: Mapping[str, str]) -> str | None:
    """The key, as either vendor's clients send it. headers: names in lower case."""
    return headers.get("x-api-key") or bearer(headers)


def is_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether a client of Anthropic's asks."""
    return "anthropic-version" in headers


def answer(name: str | None, headers: Mapping[str, str], *, spec: JobSpec, created: int) -> bytes:
    """`GET /v1/models/NAME`, or for None the list. created: unix seconds.

    The policy answers to every name, so each of them exists. OpenAI's form has no field for the
    context length.
    """
    one = _anthropic if is_anthropic(headers) else _openai
    if name is not None:
        return orjson.dumps(one(name, spec, created))
    page: dict[str, Any] = {"data": [one(_POLICY, spec, created)]}
    if is_anthropic(headers):
        page |= {"has_more": False, "first_id": _POLICY, "last_id": _POLICY}
    else:
        page["object"] = "list"
    return orjson.dumps(page)


def _openai(name: str, spec: JobSpec, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "gyre"}


def _anthropic(name: str, spec: JobSpec, created: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": spec.model.context_tokens,
        "max_tokens": spec.rollout.max_new_tokens,
    }
