"""Collectives over a prefix of ranks: each a thread of this process, on a store of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.ranks.world import CellWorld, Rendezvous

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    "payloads", [(b"", b"two", b"the longest"), (b"", b"", b""), (b"alone",)], ids=str
)
def test_every_member_gets_all_payloads_whatever_their_sizes(payloads: Sequence[bytes]) -> None:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(len(payloads)) as ranks:
        gather = partial(gathered, store.port, payloads)
        answers = list(ranks.map(gather, range(len(payloads))))
    assert answers == [list(payloads)] * len(payloads)


def gathered(port: int, payloads: Sequence[bytes], rank: int) -> list[bytes]:
    size = len(payloads)
    world = CellWorld(
        Rendezvous(
            job="j",
            epoch=1,
            rank=rank,
            size=size,
            store_host=HOST,
            store_port=port,
            timeout_s=20.0,
            device=CPU,
        )
    )
    found = world.prefix(range(size)).gather(payloads[rank])
    world.close()
    return found
