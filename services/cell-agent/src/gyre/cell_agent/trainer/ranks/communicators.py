"""What a prefix of cells meets by: gloo on a CPU, gloo and NCCL on GPUs.

Each is built straight on its backend, beside torch's default world, because destroying that one
would take the groups that Megatron's modules and optimizer hold with it.

NCCL does not see on every link that a peer is gone, and then waits for it. So while tensors travel
between GPUs, each member listens on gloo for every other's word that it is done. A connection that
closes says at once that its owner is gone; whoever hears that, or that another has failed, aborts
its own exchange and says so to the rest. **NCCL was never run**: the tests put what stalls, as it
would, in its place.

NCCL connects, and takes memory of the GPU, at a prefix's first exchange: most prefixes have none.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from gyre.cell_agent.process_groups import Backend, gloo, nccl
from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.model.layout import ENDLESS_S

Start = Callable[[Backend, Tensor], dist.Work]
"""Begins a collective on one flat tensor."""

# Of the members' words to one another, and of what is never sent.
_WORD, _NOTHING = 1, 2
_DONE, _FAILED = 0, 1
# How long a member that has given up waits for one to hear of it that is not there yet.
_TELL_S = 10.0
_AT_ONCE = dt.timedelta(milliseconds=1)
_ENDLESS = dt.timedelta(seconds=ENDLESS_S)


class Communicator:
    """One member's end, of tensors on the host."""

    def __init__(self, host: Backend) -> None:
        self.host = host

    @property
    def backends(self) -> tuple[Backend, ...]:
        return (self.host,)

    def exchange(self, start: Start, tensors: Iterable[Tensor]) -> None:
        """Returns when all are done here, one after the other. Raises RuntimeError: a member is
        gone, or late."""
        for tensor in tensors:
            start(self.host, tensor).wait()

    def close(self) -> None:
        """Others that are in an exchange see this member as gone."""
        self.host = None


class GpuCommunicator(Communicator):
    """Of tensors on a GPU; what lies on the host still goes by `host`."""

    def __init__(self, host: Backend, device: Backend, timeout: dt.timedelta) -> None:
        """device: a ProcessGroupNCCL of the same members."""
        super().__init__(host)
        self.device = device
        self._timeout = timeout
        self._rank: int = host.rank()
        self._others = [rank for rank in range(host.size()) if rank != self._rank]
        self._ears = ThreadPoolExecutor(len(self._others), thread_name_prefix="peers")
        self._aborting = threading.Lock()
        self._is_aborted = False

    @property
    def backends(self) -> tuple[Backend, ...]:
        return (self.host, self.device)

    def exchange(self, start: Start, tensors: Iterable[Tensor]) -> None:
        with self._watched():
            for tensor in tensors:
                # With a time-out, NCCL's wait is the host's, and raises what went wrong.
                start(self.device, tensor).wait(self._timeout)

    def close(self) -> None:
        self._abort()
        self._ears.shutdown(wait=False)
        super().close()

    def _abort(self) -> None:
        with self._aborting:
            if not self._is_aborted:
                self.device.abort()
            self._is_aborted = True

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """What is done meanwhile is given up when a member is gone or has given up. Raises
        RuntimeError."""
        lost: list[str] = []

        def listen(peer: int) -> None:
            word = torch.tensor([_DONE], device=CPU)
            try:
                # Each bucket has the time-out; all of them may take longer.
                self.host.recv([word], peer, _WORD).wait(_ENDLESS)
            except RuntimeError as error:
                lost.append(str(error))
            else:
                if word.item() == _FAILED:
                    lost.append(f"member {peer} has given up")
            if lost:
                self._abort()

        hearing = {peer: self._ears.submit(listen, peer) for peer in self._others}
        word = _FAILED
        try:
            yield
            word = _FAILED if lost else _DONE
        finally:
            limit = self._timeout if word == _DONE else dt.timedelta(seconds=_TELL_S)
            self._tell(word, limit)
            self._hear_out(hearing, limit)
        if lost:
            raise RuntimeError(lost[0])

    def _hear_out(self, hearing: Mapping[int, Future[None]], limit: dt.timedelta) -> None:
        """Returns when every other has said its word; who has not in time is taken for gone."""
        wait_for(hearing.values(), limit.total_seconds())
        for peer, heard in hearing.items():
            if not heard.done():
                # A time-out has gloo close the connection, which ends the other wait on it.
                with suppress(RuntimeError):
                    nothing = torch.empty(1, device=CPU)
                    self.host.recv([nothing], peer, _NOTHING).wait(_AT_ONCE)
            heard.result()

    def _tell(self, word: int, limit: dt.timedelta) -> None:
        """All others. Who is gone, or does not come, is known by its own silence."""
        said = torch.tensor([word], device=CPU)
        sent: list[dist.Work] = []
        for peer in self._others:
            with suppress(RuntimeError):
                sent.append(self.host.send([said], peer, _WORD))
        for work in sent:
            with suppress(RuntimeError):
                work.wait(limit)


def connect(
    store: Store,
    rank: int,
    size: int,
    address: str,
    timeout: dt.timedelta,
    device: torch.device,
) -> Communicator:
    """Returns when all `size` members are there. store: of these members alone. address: of this
    one. timeout: of that and of each exchange. Raises RuntimeError."""
    host = gloo(dist.PrefixStore("host", store), rank, size, address, timeout)  # type: ignore[attr-defined]
    if device == CPU:
        return Communicator(host)
    place = dist.PrefixStore("device", store)  # type: ignore[attr-defined]
    return GpuCommunicator(host, nccl(place, rank, size, timeout), timeout)
