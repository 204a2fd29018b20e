"""Settings of a cell agent, from the environment (GYRE_*)."""

from __future__ import annotations

from gyre.adapters.settings import ServiceSettings


class CellAgentSettings(ServiceSettings):
    """cell: this agent's number in the cluster. cell_host: where its engine and its weight server
    listen, loopback unless cells sit on several machines. store_host, store_port: the rendezvous.
    trainer_nice: where cells share a machine, training yields to serving, as it would on a machine
    of its own; 0 where each cell has its own.
    """

    cell: int
    cell_host: str = "127.0.0.1"
    store_host: str = "127.0.0.1"
    store_port: int
    engine_threads: int = 1
    trainer_threads: int = 1
    trainer_nice: int = 0
