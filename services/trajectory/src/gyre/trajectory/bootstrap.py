"""Puts the trajectory service together.

- `Trajectories`: consumes all facts and calls; produces group_ready, group_claimed,
  micro_step_emitted with its blob, stream_closed; waits for the next event of either stream.
- `Projection` of tree nodes: consumes calls; produces rows of tree_nodes; waits for the next call,
  or for Postgres. It has its own reader and checkpoint, so a slow or lost database never holds up
  the first loop.
- the blob server, where a port is set for it: consumes requests of trainers, produces the bytes of
  micro-steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gyre.adapters.blob_server import serving_blobs
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.collection import collect_seldom
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.keys import make_blobs_key
from gyre.adapters.logging import get_logger
from gyre.adapters.postgres import Projector, connect
from gyre.adapters.runtime import Runtime
from gyre.trajectory.handlers import Trajectories
from gyre.trajectory.projections import Projection
from gyre.trajectory.settings import TrajectorySettings
from gyre.trajectory.tree_rows import TreeRows


async def main(settings: TrajectorySettings, runtime: Runtime) -> None:
    """Serve until cancelled."""
    collect_seldom()
    log = JetStreamEventLog(settings.nats_url, name="gyre-trajectory")
    engine = connect(settings.database_url)
    blobs = DirectoryBlobStore(settings.blobs_dir)
    journal = Journal(log, SystemClock(), blobs)
    service = Trajectories(journal, blobs)
    tree_nodes = Projection(
        "trajectory.tree_nodes",
        Stream.CALLS,
        (),
        TreeRows(),
        journal=journal,
        projector=Projector(engine),
    )
    async with AsyncExitStack() as closing:
        closing.push_async_callback(log.close)
        closing.push_async_callback(engine.dispose)
        if settings.blobs_port is not None:
            await closing.enter_async_context(_blob_server(settings, settings.blobs_port, blobs))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run(runtime.ready))
            tasks.create_task(tree_nodes.run())


@asynccontextmanager
async def _blob_server(
    settings: TrajectorySettings, port: int, blobs: DirectoryBlobStore
) -> AsyncIterator[None]:
    key = make_blobs_key(settings.key_secret.get_secret_value())
    async with serving_blobs(blobs, host=settings.blobs_host, port=port, key=key) as url:
        get_logger().info("blobs_served", url=url)
        yield
