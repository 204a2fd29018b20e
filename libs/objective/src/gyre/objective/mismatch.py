"""How far the trainer's log-probabilities are from those that the engines recorded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Over targets sampled under one policy version; None: of targets whose version is not known.

    abs_sum: of |log pi - behaviour logprob|, nats. kl_sum: of rho - 1 - log rho, whose mean
    estimates KL(behaviour || trainer). Sums, so that those of parts and of cells add up.
    """

    version: int | None
    num_targets: int
    abs_sum: float
    kl_sum: float
    max_abs: float

    @property
    def mean_abs(self) -> float:
        return self.abs_sum / max(self.num_targets, 1)

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / max(self.num_targets, 1)

    def plus(self, other: Mismatch) -> Mismatch:
        """Of the same version."""
        return Mismatch(
            version=self.version,
            num_targets=self.num_targets + other.num_targets,
            abs_sum=self.abs_sum + other.abs_sum,
            kl_sum=self.kl_sum + other.kl_sum,
            max_abs=max(self.max_abs, other.max_abs),
        )


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
