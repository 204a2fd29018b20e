"""Puts the trajectory service together.

- `Trajectories`: consumes all facts and calls; produces group_ready, group_claimed,
  micro_step_emitted with its blob, stream_closed; waits for the next event of either stream.
- `Projection` of tree nodes: consumes calls; produces rows of tree_nodes; waits for the next call,
  or for Postgres. It has its own reader and checkpoint, so a slow or lost database never holds up
  the first loop.
"""

from __future__ import annotations

import asyncio

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.collection import collect_seldom
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
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
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run(runtime.ready))
            tasks.create_task(tree_nodes.run())
    finally:
        await engine.dispose()
        await log.close()
