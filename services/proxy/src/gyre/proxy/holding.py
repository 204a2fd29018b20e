"""Calls whose client left: given to its retry, or given up."""

from __future__ import annotations

from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.logging import get_logger
from gyre.contracts.events.calls import CallUndelivered
from gyre.proxy.live import Live, OpenCall, Waiter


def attach(live: Live, call: OpenCall, waiter: Waiter) -> OpenCall:
    """`waiter` waits for `call` from now on; who did before is told so."""
    before = live.deliveries.attach(call.id, waiter)
    if before is not None:
        before.displaced = True
        before.news.set()
    call.hold()
    return call


def give_up(live: Live, call: OpenCall, reason: str) -> None:
    """Nobody came for the call, if so it is: it stops, or its answer is undelivered."""
    match live.deliveries.give_up(call.id):
        case "stop" if call.generation is not None:
            call.generation.stop(reason)
        case "undelivered":
            record_undelivered(live, call, reason)


def record_undelivered(live: Live, call: OpenCall, reason: str) -> None:
    """The committed `call` has nobody left to go to."""
    live.undelivered.add(call.id)
    live.unsure.discard(call.id)
    live.spawn(_undelivered(live, call.id, reason))
    live.drop(call.id)


async def _undelivered(live: Live, call: str, reason: str) -> None:
    event = CallUndelivered(call=call, execution=live.execution.id, reason=reason)
    try:
        await live.log.append(event, call)
    except EventLogError as error:
        get_logger().error("undelivered_unrecorded", call=call, error=str(error))
        return
    async with live.asking:
        live.matcher.tree.evolve(event)
