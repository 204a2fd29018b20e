"""What was used last, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache that forgets what was not used for longest. Mutated by `get` and `put`.

    num_bytes: of all that is in it, by the word of whoever put it there; at most max_bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """What was put last under `key`, unless it is forgotten."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """In place of what was there. What alone is over the bound is not kept."""
        _, gone = self._entries.pop(key, (None, 0))
        self.num_bytes -= gone
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = value, num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.num_bytes -= dropped
