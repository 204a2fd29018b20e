"""The inbox of an accumulation: one micro-step ahead, and stops that mean what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gyre.cell_agent.trainer.batch.headers import Kind
from gyre.cell_agent.trainer.batch.inbox import Inbox, Work
from gyre.cell_agent.trainer.errors import StageLost
from gyre.core.microstep import MicroStep

# Of what must happen, and of what must not.
SOON_S, NEVER_S = 10.0, 0.05


def work(index: int) -> Work:
    step = MicroStep(
        batch="b", index=index, row_tokens=1, window_rows=1, normalizer=1, executions=(), rows=()
    )
    return Work(step=step, packed=None)


class Caller:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except StageLost as error:
            self.error = error

    def returned(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive()


def test_who_puts_a_micro_step_in_waits_until_it_is_taken() -> None:
    inbox, first = Inbox(), work(0)
    caller = Caller(lambda: inbox.put(first))
    assert not caller.returned(NEVER_S)
    assert inbox.take(SOON_S) is first
    assert caller.returned(SOON_S)
    assert inbox.take(0.0) is None


def test_a_stop_returns_when_what_was_taken_is_computed() -> None:
    inbox = Inbox()
    caller = Caller(lambda: inbox.stop(Kind.DRAIN))
    assert inbox.take(SOON_S) is Kind.DRAIN
    assert not caller.returned(NEVER_S)
    inbox.stopped()
    assert caller.returned(SOON_S)


@pytest.mark.parametrize("taken", [True, False])
def test_a_failure_ends_every_wait_now_and_later(taken: bool) -> None:
    inbox = Inbox()
    caller = Caller(lambda: inbox.stop(Kind.CLOSED))
    if taken:
        inbox.take(SOON_S)
    inbox.fail(StageLost("rank 1"))
    assert caller.returned(SOON_S)
    assert isinstance(caller.error, StageLost)
    with pytest.raises(StageLost, match="rank 1"):
        inbox.put(work(1))
