"""The ranks of a cell find one another, once, before they take commands."""

from __future__ import annotations

import datetime as dt

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.errors import PeerLost
from gyre.cell_agent.trainer.model.layout import start_cell_world
from gyre.cell_agent.trainer.process.launch import TrainerLaunch

# All ranks are started at once; the slowest has the largest share of a busy machine's imports.
MEETING_S = 110.0


def join_cell(launch: TrainerLaunch, device: torch.device) -> None:
    """Forms the cell's world, at the launch's meeting place. device: of this rank. Raises PeerLost:
    not all came."""
    if launch.meeting is None:
        start_cell_world(launch.layout, launch.rank, device=device)
        return
    meeting = launch.meeting
    try:
        store = TCPStore(
            meeting.host,
            meeting.port,
            is_master=False,
            timeout=dt.timedelta(seconds=MEETING_S),
        )
        place = PrefixStore(meeting.prefix, store)
        place.set(_here(launch.rank), "")
        place.wait([_here(rank) for rank in range(launch.layout.num_ranks)])
        start_cell_world(launch.layout, launch.rank, place, device=device)
    except (RuntimeError, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise PeerLost(
            f"the cell's {launch.layout.num_ranks} ranks did not meet: {line}"
        ) from error


def _here(rank: int) -> str:
    """The key by which a rank says that it has come; what is formed then waits without end."""
    return f"here/{rank}"
