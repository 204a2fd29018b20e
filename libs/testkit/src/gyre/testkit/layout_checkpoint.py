"""A cell's ranks save a checkpoint together and go on from it: for `layout_rank`."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.adapters.microsteps import decode_microstep

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.commands import TrainerCommands

# Too little for any rank's state.
SMALL_FILE_BYTES = 4096
_WAIT_S = 60.0


def saved_and_resumed(
    commands: TrainerCommands, directory: Path, steps: Sequence[str], version: int, rank: int
) -> dict[str, Any]:
    """By each rank, behind a batch that made `version` of lineage 0. steps: of one batch, by path.

    An earlier one, which nothing must change, is saved first.
    refused: what the ranks are told while the last one of them cannot write its part, first at once
    and then on a thread; left: what lies there then. state: files of the ranks' state once it is
    saved. sums: of the first rank's weights after one more batch, from the trainer as it was and
    from the checkpoint.
    """
    _save(commands, directory.with_name("earlier"), asynchronous=False)
    last = commands.launch.layout.num_ranks - 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == last:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE_BYTES, limits[1]))
    refused = [_refusal(commands, directory, asynchronous) for asynchronous in (False, True)]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = sorted(path.name for path in directory.parent.iterdir())

    _save(commands, directory, asynchronous=True)
    sums = [_one_more(commands, steps, version)]
    commands.load_checkpoint(directory=directory)
    sums.append(_one_more(commands, steps, version))
    state = sorted(path.name for path in (directory / "trainer_state").iterdir())
    return {"refused": refused, "left": left, "state": state, "sums": sums}


def _save(commands: TrainerCommands, directory: Path, *, asynchronous: bool) -> None:
    answer = commands.save_checkpoint(directory=directory, asynchronous=asynchronous)
    while not answer["done"]:
        answer = commands.checkpoint_status(directory=directory, wait_s=_WAIT_S)


def _refusal(commands: TrainerCommands, directory: Path, asynchronous: bool) -> str:
    from gyre.cell_agent.trainer.errors import TrainerError

    try:
        _save(commands, directory, asynchronous=asynchronous)
    except TrainerError as error:
        return error.kind
    return "none"


def _one_more(commands: TrainerCommands, steps: Sequence[str], version: int) -> str:
    batch = decode_microstep(Path(steps[0]).read_bytes()).batch
    commands.begin_batch(batch=batch, version=version)
    for path in steps:
        commands.submit_step(source=path)
    commands.flush_steps()
    commands.finish_batch(members=[0], epoch=1, final=True)
    total: str = commands.checksum()["checksum"]
    return total
