"""Settings of a cell agent, from the environment (GYRE_*)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from gyre.adapters.settings import ServiceSettings
from gyre.cell_agent.pace import FACTOR, FLOOR_S
from gyre.cell_agent.trainer.process.client import SILENCE_S
from gyre.contracts.section import Positive, PositiveFloat


class CellAgentSettings(ServiceSettings):
    """cell: this agent's number in the cluster. cell_host: where its engine and its weight server
    listen, loopback unless cells sit on several machines. store_host, store_port: the rendezvous.
    trainer_nice: where cells share a machine, training yields to serving, as it would on a machine
    of its own; 0 where each cell has its own. sglang_python: of SGLang's environment, where another
    than `gyre engines install sglang` made. blobs_url: of the trajectory service's blob server,
    where trainers get micro-steps; without it, from the directory that this machine shares with it.
    A trainer is taken to hang, and killed: trainer_silence_s after it last said that it lives, and
    in a micro-step that takes micro_step_factor times the slowest that this cell has seen, but not
    before micro_step_floor_s.
    A cell on several nodes has an agent on each: node is this one's number there, cell_nodes how
    many there are. Number 0 leads; the others run ranks for it, node_ranks at most, and reach it at
    its cell_host. Without node_ranks the ranks are spread evenly.
    """

    cell: int
    node: Annotated[int, Field(ge=0)] = 0
    cell_nodes: Positive = 1
    node_ranks: Positive | None = None
    cell_host: str = "127.0.0.1"
    store_host: str = "127.0.0.1"
    store_port: int
    engine_threads: int = 1
    trainer_threads: int = 1
    trainer_nice: int = 0
    sglang_python: Path | None = None
    blobs_url: str | None = Field(default=None, pattern=r"^https?://[^/]")
    trainer_silence_s: PositiveFloat = SILENCE_S
    micro_step_floor_s: PositiveFloat = FLOOR_S
    micro_step_factor: PositiveFloat = FACTOR

    @property
    def own_name(self) -> str:
        """Of this agent among the cluster's services."""
        return f"cell-{self.cell}" if self.node == 0 else f"cell-{self.cell}-node-{self.node}"
