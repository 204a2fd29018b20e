"""The checksum of weights that torch holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gyre.cell_agent.engine.tensors import checksum_by_name


def checksum(weights: Mapping[str, Tensor]) -> str:
    """`checksum_by_name` of tensors on the host."""

    def float32(name: str) -> memoryview:
        numbers: memoryview = weights[name].detach().to(torch.float32).contiguous().numpy().data
        return numbers

    return checksum_by_name(weights, float32)
