"""What SGLang calls of its CPU kernels with a dense model and `torch_native` attention, in torch.

The real `sgl_kernel` for CPUs is in no wheel. SGLang imports names from it that it never calls in
this configuration: each of those is a function that says so when it is called after all. Nothing is
registered under `torch.ops.sgl_kernel`, by which SGLang tells whether the real one is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Never

import torch


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    new_slots: torch.Tensor,
    row_length: int,
) -> None:
    """Notes where the cache holds tokens: for each request in turn, its positions [start, end) of
    `slots` get the next of `new_slots`. Mutates `slots`, of shape (requests, row_length)."""
    taken = 0
    spans = zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for request, start, end in spans:
        count = end - start
        slots[request, start:end] = new_slots[taken : taken + count].to(slots.dtype)
        taken += count


def __getattr__(name: str) -> Callable[..., Never]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> Never:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on a CPU")

    missing.__name__ = name
    return missing
