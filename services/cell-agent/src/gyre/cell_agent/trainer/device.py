"""The device that a rank computes on: one value, chosen when the process starts.

A process sees one GPU at most, its own (`process/launch.own_devices`), so that whatever asks for
"the GPU", on whatever thread, gets that one. **Never run on a GPU.**
"""

from __future__ import annotations

import os

import torch

from gyre.cell_agent.gpus import sees_gpu
from gyre.cell_agent.process_memory import resident_bytes
from gyre.cell_agent.trainer.errors import NoGpu

CPU = torch.device("cpu")


def own_device() -> torch.device:
    """Of this process. Raises NoGpu."""
    return device_of(
        cuda_is_available=torch.cuda.is_available(),
        built_for_cuda=torch.version.cuda is not None,
        sees_gpu=sees_gpu(os.environ),
    )


def device_of(*, cuda_is_available: bool, built_for_cuda: bool, sees_gpu: bool) -> torch.device:
    """A torch that is built for CPUs computes there, whatever the machine has. Raises NoGpu: one
    that is built for GPUs sees one and cannot use it, which on a CPU would take for ever."""
    if cuda_is_available:
        return torch.device("cuda", 0)
    if built_for_cuda and sees_gpu:
        raise NoGpu(
            "torch cannot use the GPU that is here, or the node has fewer than the cell's layout "
            "asks of it; mend its driver or the layout, or set CUDA_VISIBLE_DEVICES to nothing to "
            "train on the CPU"
        )
    return CPU


def memory_in_use() -> dict[str, int | None]:
    """rss_bytes: of this process. device_bytes: what its allocator holds of its device, None on a
    CPU; device_used_bytes: what all processes hold of that device."""
    device: int | None = None
    used: int | None = None
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        device, used = torch.cuda.memory_reserved(), total - free
    return {
        "rss_bytes": resident_bytes(os.getpid()),
        "device_bytes": device,
        "device_used_bytes": used,
    }
