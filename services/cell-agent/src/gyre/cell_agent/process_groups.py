"""torch's communicators, each built straight on its backend, beside torch's default world."""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

Backend = Any
"""A ProcessGroupGloo or ProcessGroupNCCL. torch's stubs leave out their collectives."""


def gloo(store: Store, rank: int, size: int, address: str, timeout: dt.timedelta) -> Backend:
    """Returns when all are there. address: of this member. timeout: of that and of each exchange.
    Raises RuntimeError."""
    backend: Any = dist.ProcessGroupGloo
    options = backend._Options()
    options._timeout = timeout
    options._devices = [backend.create_device(hostname=address)]
    return backend(store, rank, size, options)


def nccl(store: Store, rank: int, size: int, timeout: dt.timedelta) -> Backend:
    """Returns at once: NCCL connects, and needs the store, at the first exchange."""
    backend: Any = dist.ProcessGroupNCCL
    options = backend.Options()
    options._timeout = timeout
    return backend(store, rank, size, options)
