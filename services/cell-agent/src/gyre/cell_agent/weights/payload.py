"""Weights as a payload: a safetensors document in memory that somebody else owns. With torch."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from gyre.cell_agent.engine.tensors import TensorView, read_document

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_TORCH = {name: dtype for dtype, name in DTYPES.items()}
_LENGTH_BYTES = 8
_ALIGNMENT = 8


class Payload:
    """The layout of these weights: where each tensor lies, widest numbers first, so that each lies
    at a multiple of its numbers' size."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._places: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in sorted(weights, key=lambda name: (-weights[name].element_size(), name)):
            tensor = weights[name]
            begin, end = end, end + tensor.numel() * tensor.element_size()
            self._places[name] = begin
            header[name] = {
                "dtype": DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        self.num_bytes = len(self._header) + end

    def write(self, into: memoryview) -> None:
        """One copy of each tensor, from whatever device it is on. into: `num_bytes` long."""
        start = len(self._header)
        into[:start] = self._header
        for name, begin in self._places.items():
            tensor = self._weights[name].detach()
            if tensor.numel() == 0:
                continue
            place = torch.frombuffer(
                into, dtype=tensor.dtype, count=tensor.numel(), offset=start + begin
            )
            place.view(tensor.shape).copy_(tensor)


def tensors(payload: memoryview) -> dict[str, Tensor]:
    """Views of the payload, by name. Raises BadWeightsError: it is no safetensors document."""
    return {name: _tensor(view) for name, view in read_document(payload).items()}


def _tensor(view: TensorView) -> Tensor:
    dtype = _TORCH[view.dtype]
    if not view.data:
        return torch.empty(view.shape, dtype=dtype)
    return torch.frombuffer(view.data, dtype=dtype).view(view.shape)
