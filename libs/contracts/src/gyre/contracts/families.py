"""Model families: how messages become tokens. Chosen in the job file, told apart by their template.

A family is served when what its template makes of a message does not depend on what stands beside
it, so that sampled tokens stay as they are and only new content is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

SERVED = (
    "qwen3",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
    "qwen3-vl",
    "prime-qwen3",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "kimi-k2",
    "kimi-k2.5",
    "minimax-m2",
    "nemotron-3",
    "nemotron-3-ultra",
    "nemotron-3.5",
    "llama-3",
    "hy3",
    "laguna-xs.2",
    "laguna-m.1",
    "laguna-xs-2.1",
    "laguna-s-2.1",
    "inkling",
)

# Families that `renderers` has by hand and that cannot be served exactly, and why.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "deepseek-v3": "its template does not tell the model which tools there are",
        "deepseek-r1": "its template does not tell the model which tools there are",
        "deepseek-v4": "its template joins all that stands between two turns into one text",
        "gemma4": "its template has a turn go on behind a tool's result instead of a new one",
        "gpt-oss": "its renderer fetches a vocabulary of its own and writes the day's date",
    }
)


def _served(family: str) -> str:
    """Raises ValueError, in one line, for a family that is not served."""
    if family in SERVED:
        return family
    if family in REFUSED:
        raise ValueError(f"{family} cannot be served exactly: {REFUSED[family]}")
    raise ValueError(f"{family[:40]!r} is not known; one of {', '.join(SERVED)}")


ModelFamily = Annotated[
    str, AfterValidator(_served), WithJsonSchema({"type": "string", "enum": list(SERVED)})
]
