"""Model families: how messages become tokens. Chosen in the job file, told apart by their template.

A family is served when what its template makes of a message does not depend on what comes behind
it, so that sampled tokens stay as they are and only new content is encoded. These are all that
`renderers` has by hand.
"""

from __future__ import annotations

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
    "gpt-oss",
    "gemma4",
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v4",
)


def _served(family: str) -> str:
    """Raises ValueError, in one line, for a family that is not served."""
    if family in SERVED:
        return family
    raise ValueError(f"{family[:40]!r} is not known; one of {', '.join(SERVED)}")


ModelFamily = Annotated[
    str, AfterValidator(_served), WithJsonSchema({"type": "string", "enum": list(SERVED)})
]
