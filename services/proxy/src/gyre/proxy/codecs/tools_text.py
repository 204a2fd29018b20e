"""Tools as text, for templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_CALLS = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n"
    "```json\nARGUMENTS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)


def deepseek_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """For DeepSeek V3 and R1, whose templates tell calls and results. The form of a call is the
    template's own, in its control tokens."""
    functions = "\n".join(
        json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
    )
    return (
        f"## Tools\n\nThese functions can be called, one a line:\n{functions}\n\n"
        f"To call one, end the answer with its name and a JSON object of arguments:\n{_CALLS}\n"
        "Between the first and the last of these marks there may be several calls."
    )
