"""Puts the scheduler together.

Three loops in one process:
- `SchedulerLoop`: consumes every fact and time, produces decisions and start orders; waits for the
  next fact or the supply timer; is unblocked by its own appends coming back.
- `Heartbeats`: consumes the agents' signs of life; what it does not hear the first loop says.
- the REST API: consumes requests, produces job_submitted and what users ask of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.runtime import Runtime
from gyre.adapters.snapshots import SnapshotStore
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.scheduler.api import create_app
from gyre.scheduler.heartbeats import Heartbeats
from gyre.scheduler.loop import SchedulerLoop
from gyre.scheduler.settings import SchedulerSettings
from gyre.scheduler.snapshots import Snapshots


async def main(settings: SchedulerSettings, runtime: Runtime) -> None:
    """Serve until cancelled."""
    clock = SystemClock()
    log = JetStreamEventLog(settings.nats_url, name="scheduler")
    queue = JetStreamWorkQueue(settings.nats_url)
    journal = Journal(log, clock, DirectoryBlobStore(settings.blobs_dir))
    hearing = Heartbeats(settings.nats_url)
    store = SnapshotStore(settings.snapshots_dir)
    snapshots = Snapshots(store, log, every=settings.snapshot_every)
    loop = SchedulerLoop(journal, queue, clock, hearing, snapshots)
    caught_up = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hearing.run())
            tasks.create_task(loop.run(caught_up))
            await caught_up.wait()
            server = _server(settings, loop, journal)
            serving = tasks.create_task(server.serve())
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            runtime.ready()
    finally:
        await queue.close()
        await log.close()


def _server(settings: SchedulerSettings, loop: SchedulerLoop, journal: Journal) -> uvicorn.Server:
    app = create_app(loop, journal, settings.api_token)
    config = uvicorn.Config(
        app,
        host=settings.scheduler_host,
        port=settings.scheduler_port,
        log_config=None,
        access_log=False,
        lifespan="off",  # the app has none, and its task would end with a traceback
        timeout_graceful_shutdown=2,
    )
    return _QuietServer(config)


class _QuietServer(uvicorn.Server):
    """Leaves the process's signals to the runtime."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
