"""Puts the evaluator together: `service` has its loops, `projection` the one for Postgres."""

from __future__ import annotations

import asyncio

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import Clock, SystemClock
from gyre.adapters.eventlog import EventLog
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.postgres import Projector, connect
from gyre.adapters.runtime import Runtime
from gyre.evaluator.handlers import Handler
from gyre.evaluator.projection import Projection
from gyre.evaluator.registry import Registry
from gyre.evaluator.service import Evaluator
from gyre.evaluator.settings import EvaluatorSettings


def build(settings: EvaluatorSettings, log: EventLog, clock: Clock) -> Evaluator:
    """The evaluator over `log`, with its blobs and workspaces under the settings' home."""
    blobs, registry = DirectoryBlobStore(settings.blobs_dir), Registry()
    journal = Journal(log, clock, blobs)
    handler = Handler(
        journal=journal,
        blobs=blobs,
        clock=clock,
        settings=settings,
        registry=registry,
    )
    return Evaluator(
        log=log,
        journal=journal,
        registry=registry,
        handler=handler,
        concurrency=settings.evaluator_concurrency,
    )


async def main(settings: EvaluatorSettings, runtime: Runtime) -> None:
    """Evaluate until cancelled."""
    clock = SystemClock()
    log = JetStreamEventLog(settings.nats_url, name="gyre-evaluator")
    engine = connect(settings.database_url)
    journal = Journal(log, clock, DirectoryBlobStore(settings.blobs_dir))
    projection = Projection(journal, Projector(engine))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(projection.run())
            group.create_task(build(settings, log, clock).run(runtime.ready))
    finally:
        await engine.dispose()
        await log.close()
