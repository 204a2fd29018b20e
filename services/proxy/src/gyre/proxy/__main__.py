"""The proxy process: looks like the model's vendor to a harness, records exact tokens.

| loop | consumes | produces | waits for | is unblocked by |
|---|---|---|---|---|
| http | chat requests | answers | the call | its commit |
| generation, one a call | route, engine stream | turn, call_rerouted | an engine | facts |
| facts | GYRE_FACTS | wake-ups, seals | new facts | the log |
| sealer | terminated executions | calls_sealed | open calls | their stop |
"""

from __future__ import annotations

import asyncio
import socket

import uvloop
from aiohttp import web

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.collection import collect_seldom
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.runtime import Runtime, service_main
from gyre.proxy.app import app_runner
from gyre.proxy.polling import BusyPolling
from gyre.proxy.sampling.streams import Engines, engine_session
from gyre.proxy.service import Proxy
from gyre.proxy.settings import ProxySettings

# A job's executions may all call at once while the proxy restarts: they wait here.
_BACKLOG = 1024


async def main(settings: ProxySettings, runtime: Runtime) -> None:
    """Serves until it is cancelled. Until the log is folded clients wait in the backlog."""
    clock = SystemClock()
    log = JetStreamEventLog(settings.nats_url, name="gyre-proxy")
    limits = settings.proxy_limits
    async with (
        engine_session() as session,
        Engines(session, limits.max_context_bytes) as engines,
    ):
        journal = Journal(log, clock, DirectoryBlobStore(settings.blobs_dir))
        secret = settings.key_secret.get_secret_value()
        proxy = Proxy(journal, engines, clock, secret, limits)
        try:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(proxy.follow())
                await _caught_up(proxy, following)
                group.create_task(_serve(proxy, clock, settings, runtime))
        finally:
            await log.close()


async def _caught_up(proxy: Proxy, following: asyncio.Task[None]) -> None:
    caught_up = asyncio.create_task(proxy.caught_up.wait())
    await asyncio.wait({caught_up, following}, return_when=asyncio.FIRST_COMPLETED)
    caught_up.cancel()


async def _serve(
    proxy: Proxy, clock: SystemClock, settings: ProxySettings, runtime: Runtime
) -> None:
    polling = BusyPolling() if settings.proxy_busy_poll else None
    runner = app_runner(proxy, clock, polling=polling)
    await runner.setup()
    try:
        await web.SockSite(runner, _listening_socket(settings), backlog=_BACKLOG).start()
        collect_seldom()
        runtime.ready()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _listening_socket(settings: ProxySettings) -> socket.socket:
    if settings.proxy_listen_fd is not None:
        return socket.socket(fileno=settings.proxy_listen_fd)
    listener = socket.create_server(
        (settings.proxy_host, settings.proxy_port), backlog=_BACKLOG, reuse_port=False
    )
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    # A fifth less time a call than on asyncio's own loop.
    service_main(main, ProxySettings, service="proxy", loop_factory=uvloop.new_event_loop)
