"""Reasoning that a client carries for us: `encrypted_content` in a form of our own.

It holds the text and nothing else, no name of a call, node or execution. So there is nothing in it
to forge: a made-up one puts words into the context of the request that brings it, as any message
does, and earlier turns are found by the ids of their calls and by their text, in the tree of the
execution that the key names.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Any

from gyre.proxy.apis.openai import TEXT_FIELDS, read_list, read_text, wrong_type
from gyre.proxy.requests import BadRequest

_PREFIX = "gyre1."
_SHOWN = TEXT_FIELDS | {"reasoning_text": "text", "summary_text": "text"}


def seal(reasoning: str) -> str:
    """What goes out as `encrypted_content`."""
    return _PREFIX + b2a_base64(reasoning.encode(), newline=False).decode()


def unseal(sealed: str) -> str:
    """The reasoning that was sealed. Raises ValueError for what was not."""
    if not sealed.startswith(_PREFIX):
        raise ValueError("not of this server")
    return a2b_base64(sealed.removeprefix(_PREFIX), strict_mode=True).decode()


def read_reasoning(item: Mapping[str, Any], where: str) -> str | None:
    """The text of a reasoning item: the sealed one, else what it shows, else None.

    Raises BadRequest.
    """
    sealed = item.get("encrypted_content")
    if sealed is not None:
        try:
            return unseal(read_text(item, "encrypted_content", where))
        except ValueError as error:
            raise BadRequest(
                f"The encrypted content of '{where}' could not be verified: {error}.",
                code="invalid_encrypted_content",
                param=f"{where}.encrypted_content",
            ) from error
    texts = [
        _shown(part, f"{where}.{field}[{index}]")
        for field in ("content", "summary")
        for index, part in enumerate(read_list(item, field))
    ]
    return "\n".join(texts) if texts else None


def _shown(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise wrong_type(where, "an object")
    return read_text(part, _SHOWN.get(str(part.get("type")), "text"), where)
