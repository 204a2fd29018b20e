"""Members of a prefix whose tensors travel by a backend that does not see a peer's death, as NCCL
does not. Gloo stands in its place, and stalls where NCCL would. Each member is a thread."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.ranks import communicators
from gyre.cell_agent.trainer.ranks.communicators import Communicator, GpuCommunicator, connect

HOST, SIZE = "127.0.0.1", 3
TIMEOUT = dt.timedelta(seconds=60)
AT_ONCE_S = 10.0


class Device:
    """Gloo, whose collectives never end once they `stall`; an abort ends them, and says nothing."""

    def __init__(self, members: Communicator) -> None:
        self.members = members
        self.stalls = False
        self.lasts_s = 0.0
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        time.sleep(self.lasts_s)
        return self if self.stalls else self.members.host.allreduce(tensors)

    def wait(self, timeout: dt.timedelta) -> bool:
        if not self.aborted.wait(timeout.total_seconds()):
            raise RuntimeError("late")
        return True


def summed(backend: Any, tensor: torch.Tensor) -> Any:
    return backend.allreduce([tensor])


@pytest.fixture
def members() -> Iterator[list[tuple[GpuCommunicator, Device]]]:
    found = joined(TIMEOUT)
    yield found
    close(found)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[GpuCommunicator, Device]]]:
    monkeypatch.setattr(communicators, "_TELL_S", 0.5)
    found = joined(dt.timedelta(seconds=1))
    yield found
    close(found)


def joined(timeout: dt.timedelta) -> list[tuple[GpuCommunicator, Device]]:
    here = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    def join(rank: int) -> tuple[GpuCommunicator, Device]:
        store = TCPStore(HOST, here.port, is_master=False)
        words, sums = (
            connect(PrefixStore(name, store), rank, SIZE, HOST, timeout, CPU)
            for name in ("words", "sums")
        )
        device = Device(sums)
        return GpuCommunicator(words.host, device, timeout), device

    with ThreadPoolExecutor(SIZE) as ranks:
        return list(ranks.map(join, range(SIZE)))


def close(members: list[tuple[GpuCommunicator, Device]]) -> None:
    for communicator, _ in members:
        communicator.close()


def test_exchanges_follow_one_another_and_sum(
    members: list[tuple[GpuCommunicator, Device]],
) -> None:
    def several(communicator: GpuCommunicator) -> list[float]:
        found = []
        for number in range(5):
            tensors = [torch.full((4,), float(number)), torch.ones(2)]
            communicator.exchange(summed, tensors)
            found += [tensor[0].item() for tensor in tensors]
        return found

    assert all_do(members, several) == [[0.0, 3.0, 3.0, 3.0, 6.0, 3.0, 9.0, 3.0, 12.0, 3.0]] * SIZE
    assert not any(device.aborted.is_set() for _, device in members)


@pytest.mark.parametrize("how", ["dies", "gives up"])
def test_who_is_gone_or_gives_up_ends_the_others_exchange_at_once(
    members: list[tuple[GpuCommunicator, Device]], how: str
) -> None:
    """NCCL would have them wait for the last member until their time-out."""
    (last, _), waiting = members.pop(), members
    for _, device in waiting:
        device.stalls = True
    began = time.monotonic()

    def leaves() -> None:
        if how == "gives up":

            def broken(backend: Any, tensor: torch.Tensor) -> Any:
                raise RuntimeError("out of memory")

            with pytest.raises(RuntimeError, match="out of memory"):
                last.exchange(broken, [torch.ones(1)])
        last.close()

    def waits(communicator: GpuCommunicator) -> str:
        with pytest.raises(RuntimeError) as raised:
            communicator.exchange(summed, [torch.ones(1)])
        return str(raised.value)

    with ThreadPoolExecutor(1) as other:
        gone = other.submit(leaves)
        said = all_do(waiting, waits)
        gone.result()
    assert time.monotonic() - began < AT_ONCE_S
    assert all(device.aborted.is_set() for _, device in waiting)
    if how == "gives up":
        assert "member 2 has given up" in said


def test_the_time_out_is_of_each_bucket_and_not_of_all(
    hurried: list[tuple[GpuCommunicator, Device]],
) -> None:
    for _, device in hurried:
        device.lasts_s = 0.4
    tensors = [[torch.ones(1) for _ in range(4)] for _ in range(SIZE)]
    all_do(hurried, lambda member: member.exchange(summed, tensors[member.host.rank()]))
    assert all(tensor.item() == SIZE for own in tensors for tensor in own)


def test_who_hangs_is_not_waited_for_longer_than_the_time_out(
    hurried: list[tuple[GpuCommunicator, Device]],
) -> None:
    waiting = hurried[:-1]
    for _, device in waiting:
        device.stalls = True
    began = time.monotonic()

    def waits(communicator: GpuCommunicator) -> None:
        with pytest.raises(RuntimeError):
            communicator.exchange(summed, [torch.ones(1)])

    all_do(waiting, waits)
    assert time.monotonic() - began < AT_ONCE_S


def all_do(
    members: list[tuple[GpuCommunicator, Device]], work: Callable[[GpuCommunicator], Any]
) -> list[Any]:
    with ThreadPoolExecutor(len(members)) as ranks:
        return list(ranks.map(work, [communicator for communicator, _ in members]))
