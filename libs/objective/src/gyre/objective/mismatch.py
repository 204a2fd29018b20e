"""Mismatch of trainer and engines on the targets of a forward unit, by policy version."""

from __future__ import annotations

import torch
from torch import Tensor

from gyre.core.mismatch import Mismatch


def mismatches(
    logprobs: Tensor, behaviour_logprobs: Tensor, versions: Tensor, versioned: Tensor
) -> tuple[Mismatch, ...]:
    """By version in ascending order, not known ones last. All [n]; versions int64, read where
    `versioned`, bool."""
    difference = logprobs.detach().double() - behaviour_logprobs
    found = [
        _of(version, difference[versioned & (versions == version)])
        for version in torch.unique(versions[versioned]).tolist()
    ]
    if not versioned.all():
        found.append(_of(None, difference[~versioned]))
    return tuple(found)


def _of(version: int | None, difference: Tensor) -> Mismatch:
    return Mismatch(
        version=version,
        num_targets=difference.numel(),
        abs_sum=difference.abs().sum().item(),
        kl_sum=(difference.expm1() - difference).sum().item(),
        max_abs=difference.abs().max().item(),
    )
