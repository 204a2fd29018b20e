"""`python -m gyre.testkit.agreeing_ranks OUT`: what two ranks of a cell are told when one cannot.

Produces `OUT.<rank>.json`, with the kind of error, or "none", of: a micro-step's body that rank 1
cannot have, one that both have, work of rank 0 that the disk refuses. Exit status 1: a rank failed.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

NUM_RANKS = 2
NOWHERE = "http://127.0.0.1:1/blobs"
_DEADLINE_S = 0.3


def main(out: str) -> int:
    importlib.import_module("gyre.cell_agent.trainer.commands.batches")
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_run, args=(out, rank)) for rank in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return int(any(rank.exitcode for rank in ranks))


def _run(out: str, rank: int) -> None:
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from gyre.adapters.blob_fetch import fetch_body
    from gyre.adapters.blobs import digest_of
    from gyre.adapters.microsteps import encode_microstep
    from gyre.cell_agent.trainer.commands import batches
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.layout import start_cell_world
    from gyre.cell_agent.trainer.ranks.cell_ranks import CellRanks
    from gyre.contracts.training_job import LayoutSection
    from gyre.testkit.trainer_cells import batch_of_steps

    torch.set_num_threads(1)
    layout = LayoutSection(data=NUM_RANKS)
    store = FileStore(f"{out}.store", NUM_RANKS)
    start_cell_world(layout, rank, store, device=CPU, timeout_s=30.0)
    batches.fetch_body = partial(fetch_body, deadline_s=_DEADLINE_S)  # type: ignore[attr-defined]
    body = encode_microstep(batch_of_steps(count=1)[0])
    path, digest = Path(f"{out}.{rank}.body"), digest_of(body)
    path.write_bytes(body)
    source = str(path) if rank == 0 else f"{NOWHERE}/{digest}"
    told = [
        _kind(lambda: batches._fetched_by_all(source, digest)),
        _kind(lambda: batches._fetched_by_all(str(path), digest)),
        _kind(lambda: CellRanks().once(Path(f"{out}.none").read_bytes)),
    ]
    Path(f"{out}.{rank}.json").write_text(json.dumps(told))
    # Nobody leaves while another still talks to it.
    torch.distributed.barrier()


def _kind(work: Callable[[], object]) -> str:
    from gyre.cell_agent.trainer.errors import TrainerError

    try:
        work()
    except TrainerError as error:
        return error.kind
    return "none"


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main(sys.argv[1]))
