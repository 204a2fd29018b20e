"""Weights as a payload: a safetensors document in memory that somebody else owns. With torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod

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
    """Where each tensor lies in a document of tensors of one type. shapes: by name."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + prod(shape) * dtype.itemsize
            self._places[name] = begin
            header[name] = {
                "dtype": DTYPES[dtype],
                "shape": list(shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        self.num_bytes = len(self._header) + end

    def begin(self, into: memoryview) -> None:
        """into: `num_bytes` long, all of which is written once every tensor was put there."""
        into[: len(self._header)] = self._header

    def put(self, into: memoryview, name: str, tensor: Tensor) -> None:
        """One copy, from whatever device it is on. Raises KeyError: there is no place for it."""
        start = len(self._header) + self._places[name]
        if tensor.numel() == 0:
            return
        place = torch.frombuffer(into, dtype=self._dtype, count=tensor.numel(), offset=start)
        place.view(tensor.shape).copy_(tensor.detach())


def tensors(payload: memoryview) -> dict[str, Tensor]:
    """Views of the payload, by name. Raises BadWeightsError: it is no safetensors document."""
    return {name: _tensor(view) for name, view in read_document(payload).items()}


def _tensor(view: TensorView) -> Tensor:
    dtype = _TORCH[view.dtype]
    if not view.data:
        return torch.empty(view.shape, dtype=dtype)
    return torch.frombuffer(view.data, dtype=dtype).view(view.shape)
