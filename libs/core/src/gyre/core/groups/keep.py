"""Oversampling: which N of a group's N' executions are kept. A named policy (`schedule.keep`).

- `first_finished`: the first N that ended by themselves, in the order of the log. They are the
  shorter ones, and where length and reward go together the baseline is off by it: the report shows
  the lengths of both. Who broke or was cancelled counts only when all N' have ended and fewer than
  N by themselves.
- `drawn`: all N' end and are scored; N are drawn by job seed and group alone, whatever they took,
  out of those with a score, so that an evaluator's failure costs the group nothing.

Without oversampling every execution is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Literal

Keep = Literal["first_finished", "drawn"]


def first_finished(ended: Mapping[str, bool], num_started: int, num: int) -> tuple[str, ...] | None:
    """The kept ones in the order they ended, None while they are not known.

    ended: execution -> whether it ended by itself, in the order of the log; num_started: N'.
    """
    done = tuple(name for name, by_itself in ended.items() if by_itself)
    if len(done) >= num:
        return done[:num]
    if len(ended) < num_started:
        return None
    return (done + tuple(name for name, by_itself in ended.items() if not by_itself))[:num]


def drawn(
    executions: Sequence[str], num: int, *, seed: int, group: str, scored: Callable[[str], bool]
) -> tuple[str, ...]:
    """`num` of `executions`: a random order of them, those with a score before those without."""
    digest = sha256(f"keep\x1f{seed}\x1f{group}".encode()).digest()
    order = list(executions)
    Random(int.from_bytes(digest, "big")).shuffle(order)
    order.sort(key=lambda name: not scored(name))
    return tuple(order[:num])
