"""Tensors as few large flat buckets, so that a collective's latency does not count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

# Large enough that latency does not count, small enough not to double a big model's memory.
BUCKET_BYTES = 64 * 1024 * 1024


def split_buckets(buffers: Iterable[Tensor]) -> Iterator[Tensor]:
    """Views of flat contiguous buffers, BUCKET_BYTES each at most."""
    for buffer in buffers:
        size = max(1, BUCKET_BYTES // buffer.element_size())
        for start in range(0, buffer.numel(), size):
            yield buffer[start : start + size]


def flat_buckets(parameters: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Copies of parameters, laid end to end up to BUCKET_BYTES, each with the parameters in it."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if bucket and size + parameter.nbytes > BUCKET_BYTES:
            yield _flat(bucket), bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield _flat(bucket), bucket


@torch.no_grad()
def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


@torch.no_grad()
def scatter(flat: Tensor, parameters: Sequence[Tensor]) -> None:
    pieces = flat.split_with_sizes([parameter.numel() for parameter in parameters])
    for piece, parameter in zip(pieces, parameters, strict=True):
        parameter.copy_(piece.view_as(parameter))
