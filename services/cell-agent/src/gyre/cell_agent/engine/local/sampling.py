"""Sampling of one token for each row of a batch.

A row's draw is a single uniform number, turned into a token by inverting the cumulative
distribution: the result depends on that row's logits and number alone, never on the batch.
With `sampling_seed` the number is a hash of (seed, output position), so that a request that is
retracted, or moved to another engine with its tokens kept, continues with the same draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.cell_agent.engine.local.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """The parameters of n rows as tensors; rebuilt only when the batch's members change."""

    temperatures: Tensor
    greedy: Tensor
    any_sampled: bool
    filters: tuple[Tensor, Tensor, Tensor] | None
    """(top_k, top_p, min_p), each [n, 1]; None when no row filters."""


def build_batch(rows: Sequence[SamplingParams], vocab_size: int) -> SamplingBatch:
    """Gather the parameters of `rows` in order."""
    filtered = any(row.top_k or row.top_p < 1 or row.min_p > 0 for row in rows)
    filters = (
        (
            torch.tensor([[row.top_k or vocab_size] for row in rows]),
            torch.tensor([[row.top_p] for row in rows]),
            torch.tensor([[row.min_p] for row in rows]),
        )
        if filtered
        else None
    )
    return SamplingBatch(
        temperatures=torch.tensor([[row.temperature] for row in rows]),
        greedy=torch.tensor([row.greedy for row in rows]),
        any_sampled=not all(row.greedy for row in rows),
        filters=filters,
    )


def sample(logits: Tensor, batch: SamplingBatch, draws: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Tokens [n] and log-probabilities [n, V] from logits [n, V].

    Log-probabilities are after temperature and before top-k, top-p and min-p (those only
    restrict the choice), as SGLang reports them. `draws` holds n numbers in [0, 1).
    """
    logprobs = torch.log_softmax(logits / batch.temperatures, dim=-1)
    best = logprobs.argmax(dim=-1)
    if not batch.any_sampled:
        return best, logprobs
    probabilities = logprobs.exp()
    if batch.filters is not None:
        probabilities = _filter(probabilities, *batch.filters)
    # Doubles: a float cumulative sum over a large vocabulary loses the rare tokens.
    cumulative = probabilities.double().cumsum(dim=-1)
    targets = torch.tensor(draws, dtype=torch.float64).unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    chosen = chosen.clamp_(max=logits.shape[1] - 1)
    return torch.where(batch.greedy, best, chosen), logprobs


def _filter(probabilities: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Zero what top-k, top-p and min-p exclude; the most likely token always stays."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    keep = (before <= top_p) & (torch.arange(ordered.shape[1]) < top_k)
    keep &= ordered >= ordered[:, :1] * min_p
    kept = torch.where(keep, ordered, torch.zeros_like(ordered))
    return torch.zeros_like(probabilities).scatter_(1, order, kept)


def seeded_draw(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on the seed and the output position alone."""
    key = f"{seed}/{position}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
