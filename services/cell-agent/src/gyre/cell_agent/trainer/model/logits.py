"""From this rank's logits to log pi and entropy of all targets of a forward unit.

Under tensor parallelism a rank has a part of the vocabulary, under context parallelism some of the
targets. Either way every rank gets the whole answer, and the backward pass reaches what the rank
itself computed: the loss is worked out by each on the same numbers, and nobody has to be told.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.megatron.megatron_core import parallel_state
from gyre.cell_agent.trainer.model.layout import own_layout
from gyre.objective import TokenPolicy, token_policy

_HALF = (torch.bfloat16, torch.float16)


def own_policy(logits: Tensor, token_ids: Tensor, temperatures: Tensor) -> TokenPolicy:
    """logits: [n, this rank's part of the vocabulary]; token_ids: int64 [n]; temperatures: [n].
    Of n targets, the same on all tensor ranks."""
    # A log-probability in half precision has two digits.
    logits = logits.float() if logits.dtype in _HALF else logits
    if own_layout().tensor == 1:
        return token_policy(logits, token_ids, temperatures)
    scaled = logits / temperatures.to(logits.dtype)[:, None]
    first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[1]
    logprobs, entropy = _ParallelLogSoftmax.apply(  # type: ignore[no-untyped-call]
        scaled, token_ids - first, parallel_state.get_tensor_model_parallel_group()
    )
    return TokenPolicy(logprobs=logprobs, entropy=entropy)


def spread(policy: TokenPolicy, places: Tensor, num_targets: int) -> TokenPolicy:
    """policy: of the targets at `places`, int64 [k], of `num_targets`. Returns that of all, on all
    context and data ranks, among which every target has one place. Collective."""
    if own_layout().context * own_layout().data == 1:
        return policy
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    logprobs, entropy = _Spread.apply(  # type: ignore[no-untyped-call]
        policy.logprobs, policy.entropy, places, num_targets, group
    )
    return TokenPolicy(logprobs=logprobs, entropy=entropy)


class _ParallelLogSoftmax(torch.autograd.Function):
    """(scaled logits [n, v], int64 [n] counted from the part's first entry, group) -> log pi [n]
    with gradient, entropy [n] without."""

    @staticmethod
    def forward(
        ctx: Any, scaled: Tensor, token_ids: Tensor, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        largest = scaled.amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shifted = scaled - largest[:, None]
        rows = torch.nonzero((token_ids >= 0) & (token_ids < scaled.shape[1]))[:, 0]
        columns = token_ids[rows]
        chosen = shifted.new_zeros(len(shifted))
        chosen[rows] = shifted[rows, columns]
        weights = shifted.exp()
        sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1), chosen])
        dist.all_reduce(sums, group=group)
        total, weighted, chosen = sums
        ctx.save_for_backward(weights / total[:, None], rows, columns)
        entropy = total.log() - weighted / total
        ctx.mark_non_differentiable(entropy)
        return chosen - total.log(), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, rows, columns = ctx.saved_tensors
        grad = grads[0]
        to_scaled = probabilities * -grad[:, None]
        to_scaled[rows, columns] += grad[rows]
        return to_scaled, None, None


class _Spread(torch.autograd.Function):
    """Zeros but for one's own, summed: exact. The gradient of what others computed is theirs."""

    @staticmethod
    def forward(
        ctx: Any,
        logprobs: Tensor,
        entropy: Tensor,
        places: Tensor,
        num_targets: int,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor]:
        both = logprobs.new_zeros(2, num_targets)
        both[:, places] = torch.stack([logprobs, entropy])
        dist.all_reduce(both, group=group)
        ctx.save_for_backward(places)
        all_logprobs, all_entropy = (row.clone() for row in both)
        ctx.mark_non_differentiable(all_entropy)
        return all_logprobs, all_entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grads[0][places], None, None, None, None
