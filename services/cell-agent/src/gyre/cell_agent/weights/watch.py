"""Work that needs a peer, given up as soon as the peer's connection ends or nothing moves."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from gyre.cell_agent.weights.errors import CutOff

# What cannot be given up, as a communicator that connects, is left to its own thread after it.
_GIVE_UP_S = 1.0


def watched(
    connection: socket.socket,
    work: Callable[[], None],
    *,
    moved: Callable[[], int],
    give_up: Callable[[], None],
    stall_s: float,
) -> None:
    """Does `work` on a thread of its own. moved: grows as it gets on; it may stand still for
    stall_s. connection: to a peer that says nothing meanwhile. Raises CutOff, and what work does.
    """
    done: Future[None] = Future()
    ours, theirs = socket.socketpair()
    with ours, selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(ours, selectors.EVENT_READ)
        threading.Thread(
            target=_run, args=(work, done, theirs), name="weights-pair", daemon=True
        ).start()
        reason = _reason_to_give_up(selector, ours, moved, stall_s)
    if reason is None:
        done.result()
        return
    with suppress(Exception):  # it is cut off, whatever it says of that
        give_up()
        done.result(_GIVE_UP_S)
    raise CutOff(reason)


def _run(work: Callable[[], None], done: Future[None], ended: socket.socket) -> None:
    with ended:
        try:
            work()
        except Exception as error:  # noqa: BLE001  told on the thread that waits
            done.set_exception(error)
        else:
            done.set_result(None)


def _reason_to_give_up(
    selector: selectors.BaseSelector, ended: socket.socket, moved: Callable[[], int], stall_s: float
) -> str | None:
    """None: the work has ended."""
    last, since = moved(), time.monotonic()
    while True:
        found = selector.select(max(0.0, since + stall_s - time.monotonic()))
        if any(key.fileobj is ended for key, _ in found):
            return None
        if found:
            return "the other side is gone"
        if moved() == last:
            return f"nothing moved for {stall_s:g} s"
        last, since = moved(), time.monotonic()
