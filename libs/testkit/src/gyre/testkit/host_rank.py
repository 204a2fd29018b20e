"""`python -m gyre.testkit.host_rank`: the ranks of a cell pull weights, on hosts as they are told.

A process for each rank, forked from one that has imported torch. Only their host's name is played:
whoever has another one is told nothing of the others' memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

DEADLINE_S = 60.0


def pulled(source: tuple[str, int], hosts: Sequence[str], keys: Sequence[str]) -> list[str]:
    """hosts, keys: of each rank. Returns what each had, version 1 of lineage 0: the SHA-256 of the
    payload, or the name of the error."""
    host, port = source
    told = subprocess.run(
        [
            *(sys.executable, "-m", "gyre.testkit.host_rank", "--source", host, str(port)),
            *("--hosts", *hosts, "--keys", *keys),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    found: list[str] = json.loads(told.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.testkit.host_rank")
    parser.add_argument("--source", nargs=2, required=True)
    parser.add_argument("--hosts", nargs="+", required=True)
    parser.add_argument("--keys", nargs="+", required=True)
    options = parser.parse_args()

    import tempfile

    import torch.distributed  # noqa: F401

    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        ranks = [
            fork.Process(target=_run, args=(options, rank, Path(directory)))
            for rank in range(len(options.hosts))
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        found = [(Path(directory) / str(rank)).read_text() for rank in range(len(ranks))]
    sys.stdout.write(json.dumps(found))
    return int(any(rank.exitcode for rank in ranks))


def _run(options: argparse.Namespace, rank: int, directory: Path) -> None:
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from gyre.cell_agent.trainer.ranks import host_ranks
    from gyre.cell_agent.weights.base import Pulled
    from gyre.cell_agent.weights.errors import WeightTransportError
    from gyre.cell_agent.weights.memory import Memory
    from gyre.cell_agent.weights.tcp import TcpWeightSink
    from gyre.cell_agent.weights.transports import pull

    host, port = options.source
    sink = TcpWeightSink(key=options.keys[rank])

    def pull_into(memory: Memory) -> Pulled:
        return pull(sink, host, int(port), version=1, lineage=0, memory=memory)

    store = FileStore(str(directory / "store"), len(options.hosts))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(options.hosts))
    with mock.patch.object(host_ranks, "host_name", return_value=options.hosts[rank]):
        ranks = host_ranks.HostRanks()
    try:
        told = hashlib.sha256(ranks.pull(pull_into).payload).hexdigest()
    except WeightTransportError as error:
        told = type(error).__name__
    (directory / str(rank)).write_text(told)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
