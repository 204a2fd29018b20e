"""Puts a cell agent together.

Two loops:
- `CellAgent` consumes every fact, produces the facts of its own cell and its claims, waits for a
  fact or the end of a child process. Engine and trainer end with it.
- `heartbeat.beat` says every two seconds that the agent is alive.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.runtime import Runtime
from gyre.cell_agent.agent import CellAgent
from gyre.cell_agent.heartbeat import beat
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.contracts.events.cells import AgentOnline


async def main(settings: CellAgentSettings, runtime: Runtime) -> None:
    """Serve the cell until cancelled; its processes are stopped on the way out."""
    log = JetStreamEventLog(settings.nats_url, name=f"cell-agent-{settings.cell}")
    performer = Performer(settings, CellProcesses(settings))
    incarnation = uuid.uuid4().hex
    agent = CellAgent(
        cell=settings.cell,
        incarnation=incarnation,
        journal=Journal(log, SystemClock(), DirectoryBlobStore(settings.blobs_dir)),
        performer=performer,
    )
    online = AgentOnline(
        cell=settings.cell, incarnation=incarnation, host=socket.gethostname(), pid=os.getpid()
    )
    ready = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.run(online, ready))
            tasks.create_task(beat(settings.nats_url, cell=settings.cell, incarnation=incarnation))
            await ready.wait()
            runtime.ready()
    finally:
        await performer.processes.stop()
        await log.close()
