"""Core attention over a prefix tree, in place of Megatron's dense softmax, on a CPU.

A run of the tree is one causal sequence; what precedes it on its root path are a few spans of the
flat sequence, all of it visible. So a run's attention is one causal call and one unmasked call a
span, put together by their log-sum-exps: no mask and no copy of keys is ever made, and what is kept
for the backward pass is linear in the number of tokens. The backward pass asks the same kernel for
each part's gradients with the whole's output and log-sum-exp, which makes them exact: with
p = exp(score - lse) the gradient of a part depends on the other parts through these two alone.

torch differentiates neither its kernel's log-sum-exp nor the merge, hence the autograd function
here. The kernel is internal to torch (2.13.0 is pinned); tests hold it against plain attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, Run, Span

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class TreeAttention(torch.nn.Module):
    """A `core_attention.CoreAttention`: its mask is the tree itself."""

    def __init__(self, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale

    @staticmethod
    def mask(tree: PrefixTree, device: torch.device) -> PrefixTree:
        return tree

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        attention_bias: PrefixTree,
        **__: Any,
    ) -> Tensor:
        """query [t, 1, heads, d]; key, value [t, 1, groups, d] -> [t, 1, heads * d]."""
        return attend_runs(query, key, value, attention_bias.runs, scale=self.softmax_scale)


def attend_runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[Run, ...],
    *,
    first: int = 0,
    scale: float | None = None,
) -> Tensor:
    """query [s, 1, heads, d], of the tokens first..first + s of the tree's sequence, which `runs`
    cover; key, value [t, 1, groups, d], of the whole sequence -> [s, 1, heads * d]."""
    groups = key.shape[2]
    # [heads of a group, groups, s, d]: the kernel's batch is the heads that share a key.
    by_group = query.view(len(query), groups, -1, query.shape[3]).permute(2, 1, 0, 3)
    keys, values = (tensor[:, 0].transpose(0, 1)[None] for tensor in (key, value))
    output: Tensor = _TreeSoftmax.apply(  # type: ignore[no-untyped-call]
        by_group, keys, values, runs, first, scale or query.shape[3] ** -0.5
    )
    return output.permute(2, 1, 0, 3).flatten(1)[:, None]


class _TreeSoftmax(torch.autograd.Function):
    """query [r, g, s, d]; key, value [1, g, t, d] -> [r, g, s, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        runs: tuple[Run, ...],
        first: int,
        scale: float,
    ) -> Tensor:
        key, value = (tensor.expand(len(query), -1, -1, -1) for tensor in (key, value))
        output = torch.empty_like(query)
        sums = []
        for run in runs:
            own = slice(run.start - first, run.stop - first)
            asking = query[:, :, own]
            parts = [
                _attend(asking, key[:, :, a:b], value[:, :, a:b], 0.0, causal, scale=scale)
                for (a, b), causal in _parts(run)
            ]
            output[:, :, own], log_sum = _merged(parts)
            sums.append(log_sum)
        ctx.runs, ctx.first, ctx.scale = runs, first, scale
        ctx.save_for_backward(query, key, value, output, torch.cat(sums, dim=2))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sums = ctx.saved_tensors
        (grad,) = grads
        # In the log-sum-exp's precision: a trunk's keys collect from every run below.
        to_query = log_sums.new_zeros(query.shape)
        to_key, to_value = (log_sums.new_zeros(key[:1].shape) for _ in range(2))
        for run in ctx.runs:
            own = slice(run.start - ctx.first, run.stop - ctx.first)
            of_run = [tensor[:, :, own] for tensor in (output, log_sums)]
            for (a, b), causal in _parts(run):
                d_query, d_key, d_value = _attend_backward(
                    grad[:, :, own],
                    query[:, :, own],
                    key[:, :, a:b],
                    value[:, :, a:b],
                    *of_run,
                    0.0,
                    causal,
                    scale=ctx.scale,
                )
                to_query[:, :, own] += d_query
                to_key[:, :, a:b] += d_key.sum(0, keepdim=True)
                to_value[:, :, a:b] += d_value.sum(0, keepdim=True)
        collected = (tensor.to(query.dtype) for tensor in (to_query, to_key, to_value))
        return (*collected, None, None, None)


def _parts(run: Run) -> Iterator[tuple[Span, bool]]:
    """Spans that the run attends to, and whether within the span a token sees only what precedes
    its own place in the run: so it is in the run itself."""
    for span in run.above:
        yield span, False
    yield (run.start, run.stop), True


def _merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over all keys, from those over each part's."""
    if len(parts) == 1:
        return parts[0]
    total = torch.logsumexp(torch.stack([log_sum for _, log_sum in parts]), dim=0)
    weighted = [out * (log_sum - total).exp()[..., None] for out, log_sum in parts]
    return torch.stack(weighted).sum(0), total
