"""Parts of the trainer on a GPU: attention's compiled kernels, pinned parking, NCCL beside gloo."""

from __future__ import annotations

import datetime as dt
import random

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.device import memory_in_use
from gyre.cell_agent.trainer.model.attention import TreeAttention
from gyre.cell_agent.trainer.model.flex_attention import FlexTreeAttention
from gyre.cell_agent.trainer.model.prefix_tree import build_prefix_tree
from gyre.cell_agent.trainer.parking import PinnedParking
from gyre.testkit.training_trees import TreeShape, random_block

HEADS, GROUPS, HEAD_SIZE = 8, 2, 64
PARKED_BYTES = 1 << 28


@pytest.mark.parametrize("num_edges", [1, 8, 40])
def test_the_compiled_attention_is_the_cpus_with_its_gradients(
    device: torch.device, num_edges: int
) -> None:
    shape = TreeShape(num_edges=num_edges, edge_tokens=60, depth_first=0.6, vocab_size=50)
    tree = build_prefix_tree([random_block(random.Random(num_edges), shape, prompt=(1, 2, 3))])
    torch.manual_seed(0)
    found: list[list[torch.Tensor]] = []
    inputs = [
        torch.randn(tree.num_tokens, 1, heads, HEAD_SIZE) for heads in (HEADS, GROUPS, GROUPS)
    ]
    for kind, place in ((TreeAttention, torch.device("cpu")), (FlexTreeAttention, device)):
        leaves = [tensor.to(place).requires_grad_() for tensor in inputs]
        attention = kind(softmax_scale=HEAD_SIZE**-0.5)
        output = attention(*leaves, None, attention_bias=kind.mask(tree, place))
        output.square().sum().backward()
        grads = [leaf.grad for leaf in leaves]
        found.append([output.detach().cpu(), *(grad.cpu() for grad in grads if grad is not None)])
    for expected, computed in zip(*found, strict=True):
        # TF32 may be in the kernel's products.
        assert (computed - expected).norm() / expected.norm() < 2e-3


def test_what_is_parked_gives_its_memory_back_and_returns_as_it_was(device: torch.device) -> None:
    source = torch.randn(PARKED_BYTES // 4, device=device)
    before, kept = memory_in_use()["device_bytes"], source.clone().cpu()
    parking = PinnedParking(device)
    for _ in range(3):
        parking.park([source])
        parked = memory_in_use()["device_bytes"]
        assert before is not None
        assert parked is not None
        assert before - parked >= PARKED_BYTES * 0.9
        parking.unpark()
        assert torch.equal(source.cpu(), kept)


def test_a_sum_and_a_broadcast_over_nccl_beside_gloo(device: torch.device) -> None:
    """One rank a process: what a cell's world is on a GPU, on however many GPUs one has."""
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        store=HashStore(),
        rank=0,
        world_size=1,
        timeout=dt.timedelta(seconds=60),
    )
    try:
        gradient = torch.full((1 << 20,), 3.0, device=device)
        dist.all_reduce(gradient)
        dist.broadcast(gradient, 0)
        agreed = torch.ones(1)
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        assert torch.equal(gradient.cpu(), torch.full((1 << 20,), 3.0))
        assert agreed.item() == 1.0
    finally:
        dist.destroy_process_group()
