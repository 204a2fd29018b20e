"""Tensors as SGLang 0.5.23 takes them over HTTP: a pickle of [(name, tensor)] on the CPU.

A plain pickle holds the bytes. What torch's multiprocessing would send instead, a descriptor of
shared memory, kills the server when its sender is gone, so it is never used.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gyre.cell_agent.engine.tensors import TensorView

if TYPE_CHECKING:
    from torch import Tensor


def pickled(bucket: Sequence[TensorView]) -> bytes:
    """Imports torch, which takes a second the first time: call it from a thread."""
    return pickle.dumps([(view.name, _tensor(view)) for view in bucket])


def _tensor(view: TensorView) -> Tensor:
    import torch

    dtypes = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
    }
    # A copy: torch warns of a buffer that it may not write to.
    flat = torch.frombuffer(bytearray(view.data), dtype=dtypes[view.dtype])
    return flat.reshape(view.shape)
