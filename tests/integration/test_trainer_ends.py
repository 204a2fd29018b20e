"""How a trainer process ends: killed, without a model, with its agent."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerProcess, TrainerRefused
from gyre.cell_agent.trainer.process.control import EXIT_ORPHANED
from gyre.cell_agent.trainer.process.launch import Meeting, TrainerLaunch
from gyre.contracts.training_job import LayoutSection
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_cells import CALL_S, OPTIMIZER, objective_json

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


async def test_a_killed_trainer_fails_the_call_that_waits_for_it(model: Path) -> None:
    doomed = TrainerProcess(TrainerLaunch(cell=0, model_path=model))
    await doomed.start(CALL_S)
    doomed.kill()
    with pytest.raises(TrainerGone):
        await doomed.call("status", CALL_S)
    assert await asyncio.gather(doomed.wait(), doomed.wait()) == [-signal.SIGKILL] * 2


async def test_a_model_it_cannot_read_ends_the_start_with_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trainer = TrainerProcess(TrainerLaunch(cell=3, model_path=tmp_path), log_path=log)
    with pytest.raises(TrainerRefused, match=r"^bad_model: .*config.json") as refused:
        await trainer.start(CALL_S)
    assert await trainer.wait() == 2
    (line,) = log.read_text().splitlines()
    assert line == f"trainer of cell 3: {refused.value.message}"


async def test_a_trainer_ends_with_its_agent(model: Path) -> None:
    """In the middle of a wait for peers that never come, too."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    num_keys = store.num_keys()
    sections = {"job": "j", "optimizer": OPTIMIZER, "objective": objective_json()}
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _AGENT, str(model), json.dumps(sections), str(store.port)),
        stdout=subprocess.PIPE,
    )
    assert agent.stdout is not None
    pid = int(await agent.stdout.readline())
    async with asyncio.timeout(CALL_S):
        while store.num_keys() == num_keys:  # it has said where it is, and waits for its peer
            await asyncio.sleep(0.05)
    agent.kill()
    await agent.wait()
    deadline = asyncio.get_running_loop().time() + 20.0
    while not has_ended(pid):
        assert asyncio.get_running_loop().time() < deadline, "the orphan lives on"
        await asyncio.sleep(0.05)


async def test_a_rank_that_waits_for_the_cells_others_ends_with_its_agent(model: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launch = TrainerLaunch(
        cell=0,
        model_path=model,
        layout=LayoutSection(data=2),
        meeting=Meeting(host="127.0.0.1", port=store.port, prefix="alone"),
    )
    ours, its = socket.socketpair()
    command = launch.command(str(its.fileno()))
    rank = await asyncio.create_subprocess_exec(*command, pass_fds=(its.fileno(),))
    its.close()
    await asyncio.to_thread(store.wait, ["alone/here/0"], timedelta(seconds=CALL_S))
    ours.close()
    assert await asyncio.wait_for(rank.wait(), 20.0) == EXIT_ORPHANED


# Starts a trainer, says its process id, and sends it into a world of two where it is alone.
_AGENT = """
import asyncio, json, sys
from pathlib import Path
from gyre.cell_agent.trainer.process.client import TrainerProcess
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
async def main():
    trainer = TrainerProcess(TrainerLaunch(cell=0, model_path=Path(sys.argv[1])))
    await trainer.start(120.0)
    await trainer.call("configure", 60, **json.loads(sys.argv[2]))
    print(trainer.pid, flush=True)
    port = int(sys.argv[3])
    await trainer.call(
        "form_world", 600, epoch=0, rank=0, size=2, timeout_s=600.0, store_port=port)
asyncio.run(main())
"""


def has_ended(pid: int) -> bool:
    """Or waits to be collected by whoever adopts orphans here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
