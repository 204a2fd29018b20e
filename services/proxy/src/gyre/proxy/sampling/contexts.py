"""Contexts as engines read them: token ids in JSON.

A call's context begins with the last one's, and writing it out costs more than all else that is
done with it. So the text of an execution's last contexts is kept, and only what follows is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from gyre.proxy.recent import Recent

# Of one execution: it and sub-agents that run beside it.
_KEPT = 4
# Shorter contexts are written in some microseconds.
_SHORT_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """token_ids: int32. pieces: the numbers with commas between, num_bytes in all."""

    token_ids: bytes
    pieces: tuple[bytes, ...]
    num_bytes: int


class ContextTexts:
    """Mutated by `pieces`. max_bytes: of ids and texts together."""

    def __init__(self, max_bytes: int) -> None:
        self._recent: Recent[str, tuple[_Written, ...]] = Recent(max_bytes)

    def pieces(self, execution: str, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """What a JSON list of the ids has between its brackets, joined."""
        new = array = np.asarray(token_ids, dtype=np.int32)
        if len(array) < _SHORT_TOKENS:
            return (_numbers(array),)
        ids = array.tobytes()
        before: _Written | None = None
        known = self._recent.get(execution) or ()
        for written in known:
            if ids.startswith(written.token_ids):
                before, new = written, array[len(written.token_ids) // array.itemsize :]
                break
        pieces = () if before is None else before.pieces
        if len(new):
            pieces += (b"," + _numbers(new) if pieces else _numbers(new),)
        now = _Written(token_ids=ids, pieces=pieces, num_bytes=len(ids) + sum(map(len, pieces)))
        kept = (now, *(one for one in known if one is not before))[:_KEPT]
        self._recent.put(execution, kept, sum(one.num_bytes for one in kept))
        return pieces


def _numbers(array: np.ndarray[tuple[int], np.dtype[np.int32]]) -> bytes:
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
