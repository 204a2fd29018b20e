"""What an engine answers to a generation request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.cell_agent.engine.errors import EngineProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Output tokens start..end-1 were sampled under `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer, or one event of a stream (cumulative). Logprobs are natural logarithms at
    the request's temperature; empty unless asked for. `finish_type` is None while it runs."""

    text: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_type: str | None
    finish_reason: Mapping[str, Any] | None
    weight_version: str
    spans: tuple[VersionSpan, ...]
    prompt_tokens: int
    cached_tokens: int
    num_retractions: int
    meta_info: Mapping[str, Any]


def parse_generation(body: Mapping[str, Any]) -> Generation:
    """Read a `/generate` answer; raises EngineProtocolError.

    An answer to an abort in the waiting queue has few fields: what it lacks reads as nothing.
    """
    try:
        meta = body["meta_info"]
        finish = meta["finish_reason"]
        return Generation(
            text=body.get("text", ""),
            output_ids=tuple(body["output_ids"]),
            logprobs=tuple(entry[0] for entry in meta.get("output_token_logprobs", ())),
            finish_type=finish["type"] if finish else None,
            finish_reason=finish,
            weight_version=str(meta["weight_version"]),
            spans=tuple(
                VersionSpan(version=str(span["version"]), start=span["start"], end=span["end"])
                for span in meta.get("weight_versions") or ()
            ),
            prompt_tokens=meta.get("prompt_tokens", 0),
            cached_tokens=meta.get("cached_tokens", 0),
            num_retractions=meta.get("num_retractions", 0),
            meta_info=meta,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise EngineProtocolError(f"not a /generate answer ({error!r}): {body!r:.300}") from error
