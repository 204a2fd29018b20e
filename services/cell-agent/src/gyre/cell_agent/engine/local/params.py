"""What a `/generate` body may say: parsing and validation, without the engine's state.

An unknown key of `sampling_params` is refused, an unknown top-level field is ignored, as
SGLang does. Parameters that SGLang knows and this engine does not compute (penalties, grammars,
beams, several samples a request) are refused by name unless they hold their neutral value: a
parameter that is silently ignored would falsify the recorded logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gyre.cell_agent.engine.local.errors import (
    BadRequestError,
    SchemaError,
    UnknownParameterError,
)

_T = TypeVar("_T")

GREEDY_BELOW = 1e-6
"""Temperatures under this mean argmax; logprobs are then those of temperature 1."""

DEFAULT_MAX_NEW_TOKENS = 128
MAX_STOP_STRINGS = 32

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "n": (1, None),
    "beam_width": (None,),
    "stop_regex": (None, []),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "custom_params": (None, {}),
    "watermark": (None,),
}
"""Parameters this engine does not compute, and the values at which that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling parameters, with SGLang's defaults.

    `top_k` 0 means the whole vocabulary. `max_new_tokens` None means up to the context's end.
    """

    max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    greedy: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateInput:
    """A validated `/generate` body. Exactly one of `text` and `input_ids` is set."""

    rid: str | None
    text: str | None
    input_ids: tuple[int, ...] | None
    sampling: SamplingParams
    max_new_tokens_given: bool = False
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    namespace: tuple[str | None, str | None] = (None, None)


def parse_generate(body: Any, vocab_size: int) -> GenerateInput:
    """Parse a decoded JSON body; raises SchemaError (shape) or BadRequestError (value)."""
    if not isinstance(body, dict):
        raise SchemaError("the body is not a JSON object")
    text = _field(body, "text", str)
    input_ids = _token_ids(body.get("input_ids"), "input_ids")
    if (text is None) == (input_ids is None):
        raise BadRequestError("Either text, input_ids or input_embeds should be provided.")
    _check_ids(input_ids or (), vocab_size, "input_ids")
    token_ids_logprob = _token_ids(body.get("token_ids_logprob"), "token_ids_logprob")
    _check_ids(token_ids_logprob or (), vocab_size, "token_ids_logprob")
    start = _field(body, "logprob_start_len", int)
    sampling = body.get("sampling_params")
    return GenerateInput(
        rid=_field(body, "rid", str),
        text=text,
        input_ids=input_ids,
        sampling=parse_sampling(sampling, vocab_size),
        max_new_tokens_given="max_new_tokens" in (sampling or {}),
        stream=bool(_field(body, "stream", bool)),
        return_logprob=bool(_field(body, "return_logprob", bool)),
        logprob_start_len=None if start is None or start < 0 else start,
        top_logprobs_num=min(_field(body, "top_logprobs_num", int) or 0, vocab_size),
        token_ids_logprob=token_ids_logprob,
        return_text_in_logprobs=bool(_field(body, "return_text_in_logprobs", bool)),
        return_prompt_token_ids=bool(_field(body, "return_prompt_token_ids", bool)),
        namespace=(_field(body, "extra_key", str), _field(body, "cache_salt", str)),
    )


def parse_sampling(raw: Any, vocab_size: int) -> SamplingParams:
    """Parse `sampling_params`; null values mean the default, as in SGLang."""
    if raw is None:
        return SamplingParams()
    if not isinstance(raw, dict):
        raise SchemaError("sampling_params is not a JSON object")
    _refuse_unknown(raw)
    temperature = _number(raw, "temperature", 1.0)
    if not math.isfinite(temperature) or temperature < 0:
        raise BadRequestError(
            f"temperature must be a non-negative finite number, got {temperature}."
        )
    top_p, min_p = _number(raw, "top_p", 1.0), _number(raw, "min_p", 0.0)
    if not 0 < top_p <= 1:
        raise BadRequestError(f"top_p must be in (0, 1], got {top_p}.")
    if not 0 <= min_p <= 1:
        raise BadRequestError(f"min_p must be in [0, 1], got {min_p}.")
    max_new, min_new = _token_limits(raw)
    greedy = temperature < GREEDY_BELOW
    return SamplingParams(
        max_new_tokens=max_new,
        min_new_tokens=min_new,
        temperature=1.0 if greedy else temperature,
        top_p=top_p,
        top_k=_top_k(raw, vocab_size),
        min_p=min_p,
        greedy=greedy,
        stop=_stop_strings(raw.get("stop")),
        stop_token_ids=frozenset(_token_ids(raw.get("stop_token_ids"), "stop_token_ids") or ()),
        ignore_eos=bool(_field(raw, "ignore_eos", bool)),
        skip_special_tokens=_field(raw, "skip_special_tokens", bool) is not False,
        no_stop_trim=bool(_field(raw, "no_stop_trim", bool)),
        sampling_seed=_seed(raw),
        logit_bias=_logit_bias(raw.get("logit_bias"), vocab_size),
    )


_COMPUTED = frozenset(
    (
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "stream_interval",
        "sampling_seed",
        "logit_bias",
    )
)


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    for key, value in raw.items():
        if key in _NEUTRAL:
            if value not in _NEUTRAL[key]:
                raise BadRequestError(f"{key}={value!r} is not supported by the local engine.")
        elif key not in _COMPUTED:
            known = ", ".join(f"`{name}`" for name in sorted(_COMPUTED | _NEUTRAL.keys()))
            raise UnknownParameterError(f"unknown field `{key}`, expected one of {known}")


def _token_limits(raw: Mapping[str, Any]) -> tuple[int | None, int]:
    max_new = _field(raw, "max_new_tokens", int)
    if "max_new_tokens" not in raw:
        max_new = DEFAULT_MAX_NEW_TOKENS
    min_new = _field(raw, "min_new_tokens", int) or 0
    if max_new is not None and max_new < 0:
        raise BadRequestError(f"max_new_tokens must be at least 0, got {max_new}.")
    if min_new < 0 or (max_new is not None and min_new > max_new):
        raise BadRequestError(
            f"min_new_tokens must be in [0, max_new_tokens({max_new})], got {min_new}."
        )
    return max_new, min_new


def _top_k(raw: Mapping[str, Any], vocab_size: int) -> int:
    value = _field(raw, "top_k", int)
    if value is None or value == -1:
        return 0
    if value < 1:
        raise BadRequestError(f"top_k must be -1 (disable) or at least 1, got {value}.")
    return 0 if value >= vocab_size else value


def _seed(raw: Mapping[str, Any]) -> int | None:
    seed = _field(raw, "sampling_seed", int)
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise BadRequestError(f"sampling_seed must be in [-2**63, 2**63 - 1], got {seed}.")
    return seed


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(item, str) and item for item in strings):
        raise BadRequestError("stop must be a non-empty string or a list of them.")
    if len(strings) > MAX_STOP_STRINGS:
        raise BadRequestError(f"stop holds {len(strings)} strings, at most {MAX_STOP_STRINGS}.")
    return strings


def _logit_bias(value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise SchemaError("logit_bias is not a JSON object")
    try:
        bias = tuple((int(key), float(amount)) for key, amount in value.items())
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"logit_bias must map token ids to numbers: {error}") from error
    for token_id, _ in bias:
        if not 0 <= token_id < vocab_size:
            raise BadRequestError(
                f"logit_bias must has keys in [0, {vocab_size - 1}], got {token_id}."
            )
    return bias


def _token_ids(value: Any, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise SchemaError(f"{name} must be a list of integers")
    if any(isinstance(item, list) for item in value):
        raise BadRequestError(f"{name}: the local engine takes one prompt a request.")
    if not all(type(item) is int for item in value):
        raise SchemaError(f"{name} must be a list of integers")
    return tuple(value)


def _check_ids(ids: tuple[int, ...], vocab_size: int, name: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(item for item in ids if not 0 <= item < vocab_size)
        raise BadRequestError(f"{name}: token id {bad} is outside [0, {vocab_size - 1}].")


def _number(raw: Mapping[str, Any], name: str, default: float) -> float:
    value = raw.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRequestError(f"{name} must be a number, got {value!r}.")
    return float(value)


def _field(raw: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SchemaError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value
