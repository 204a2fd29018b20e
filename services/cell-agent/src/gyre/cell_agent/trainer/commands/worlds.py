"""Commands by which this cell enters and leaves the job's world of trainers."""

from __future__ import annotations

from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import BadCommand
from gyre.cell_agent.trainer.ranks.world import Rendezvous

NAMES = ("form_world", "leave_world")


class WorldCommands(CommandFamily):
    def form_world(
        self,
        *,
        epoch: int,
        rank: int,
        size: int,
        timeout_s: float,
        store_host: str = "127.0.0.1",
        store_port: int = 0,
    ) -> Answer:
        """Joins the job's world of this epoch, leaving the one before. rank, size: cells; 0 is the
        core. A world of one needs no store."""
        if not 0 <= rank < size:
            raise BadCommand(f"form_world: rank {rank} of {size}")
        if self.trainer.settings is None:
            raise BadCommand("form_world: configure names the job first")
        self.trainer.form_world(
            Rendezvous(
                job=self.trainer.settings.job,
                epoch=epoch,
                rank=rank,
                size=size,
                coordinate=self.launch.rank,
                store_host=store_host,
                store_port=store_port,
                timeout_s=timeout_s,
                device=self.trainer.device,
            )
        )
        return {"epoch": epoch, "rank": rank, "size": size}

    def leave_world(self) -> Answer:
        """Closes its connections, so that a peer still in a collective there sees this rank gone;
        the accumulation goes with it. No error outside a world."""
        self.trainer.leave_world()
        return {}
