"""Puts a cell agent together.

Three loops:
- `CellAgent` consumes every fact, produces the facts of its own cell and its claims, waits for a
  fact or the end of a child process. Engine and trainer end with it.
- `heartbeat.beat` says every two seconds that the agent is alive.
- `NodeHost`, on a cell's other nodes and instead of both, runs ranks for the first node's agent.
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
from gyre.cell_agent.engine.launch import startable, visible_device
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.cell_agent.gpus import trains_on_gpu
from gyre.cell_agent.heartbeat import beat
from gyre.cell_agent.nodes.host import NodeHost
from gyre.cell_agent.nodes.lead import Nodes
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.contracts.events.cells import AgentOnline


async def main(settings: CellAgentSettings, runtime: Runtime) -> None:
    """Serve the cell until cancelled; its processes are stopped on the way out.

    The first node's agent is online when all the cell's nodes have reported."""
    if settings.node > 0:
        await _host(settings, runtime)
        return
    nodes = Nodes(settings) if settings.cell_nodes > 1 else None
    log = JetStreamEventLog(settings.nats_url, name=f"cell-agent-{settings.cell}")
    performer = Performer(settings, CellProcesses(settings, nodes))
    incarnation = uuid.uuid4().hex
    agent = CellAgent(
        cell=settings.cell,
        incarnation=incarnation,
        journal=Journal(log, SystemClock(), DirectoryBlobStore(settings.blobs_dir)),
        performer=performer,
    )
    ready = asyncio.Event()
    try:
        if nodes is not None:
            await nodes.gather()
        online = AgentOnline(
            cell=settings.cell,
            incarnation=incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            engines=startable(installed_python(settings.sglang_python)),
            has_gpu=visible_device(os.environ) == "cuda",
            trains_on_gpu=trains_on_gpu(os.environ),
            node_ranks=performer.processes.node_ranks,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.run(online, ready))
            tasks.create_task(beat(settings.nats_url, cell=settings.cell, incarnation=incarnation))
            await ready.wait()
            runtime.ready()
    finally:
        await performer.processes.stop()
        if nodes is not None:
            await nodes.close()
        await log.close()


async def _host(settings: CellAgentSettings, runtime: Runtime) -> None:
    listening = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(NodeHost(settings).run(listening))
        await listening.wait()
        runtime.ready()
