"""The ranks of a cell before they are one."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import PeerLost
from gyre.cell_agent.trainer.process.launch import Meeting, TrainerLaunch
from gyre.cell_agent.trainer.ranks import meeting
from gyre.contracts.training_job import LayoutSection


def test_a_rank_whose_peers_do_not_come_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is formed once all are there waits without end."""
    monkeypatch.setattr(meeting, "MEETING_S", 0.3)
    host = "127.0.0.1"
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    launch = TrainerLaunch(
        cell=0,
        model_path=Path("m"),
        layout=LayoutSection(data=2),
        meeting=Meeting(host=host, port=store.port, prefix="cell/0/s"),
    )
    with pytest.raises(PeerLost, match=r"^the cell's 2 ranks did not meet: "):
        meeting.join_cell(launch, CPU)
