"""What hands micro-steps from the thread that takes commands to the one that computes.

It holds one thing at a time, and who puts a micro-step in waits until it is taken. So one is read
and packed while another is computed, and a cell claims no more than that ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gyre.cell_agent.trainer.batch.headers import Kind
from gyre.cell_agent.trainer.model.packing import PackedMicroStep
from gyre.core.microstep import MicroStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """packed: None where the micro-step has no target."""

    step: MicroStep
    packed: PackedMicroStep | None


Item = Work | Kind
"""A micro-step, or where to stop: Kind.DRAIN, Kind.CLOSED."""


class Inbox:
    """`put`, `stop` for the one thread; `take`, `stopped`, `fail` for the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._stopping = False
        self._failure: BaseException | None = None

    def put(self, work: Work) -> None:
        """Returns when it is taken. Raises what the computing thread failed of."""
        with self._changed:
            self._place(work)

    def stop(self, kind: Kind) -> None:
        """Returns when all that was put is computed. Raises what the computing thread failed of."""
        with self._changed:
            self._stopping = True
            self._place(kind)
            self._await(lambda: not self._stopping)

    def take(self, timeout_s: float | None) -> Item | None:
        """The next item; None: there was none for `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is not None, timeout_s)
            item, self._item = self._item, None
            self._changed.notify_all()
            return item

    def stopped(self) -> None:
        """All that was taken is computed."""
        with self._changed:
            self._stopping = False
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _place(self, item: Item) -> None:
        self._await(lambda: self._item is None)
        self._item = item
        self._changed.notify_all()
        self._await(lambda: self._item is not item)

    def _await(self, holds: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failure is not None or holds())
        if self._failure is not None:
            raise self._failure
