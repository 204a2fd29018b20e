"""The cycle collector, held off where it finds nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects more than at the last collection. A call makes some hundred that are gone, without a
# collector's help, by the time that it ends: Python's own 700 would look through those under way.
_YOUNG = 10_000


def collect_seldom() -> None:
    """For a service that is up: what its imports made is not looked through any more, which took
    tens of milliseconds each time, and what is young is left to die by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


@contextmanager
def no_collection() -> Iterator[None]:
    """Reading a log or a snapshot makes objects by the hundred thousand and no cycles; collecting
    would look through them again and again, for a sixth of the time, and find nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
