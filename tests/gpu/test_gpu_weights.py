"""Weights from one GPU to another over NCCL, as between the trainers of two cells."""

from __future__ import annotations

import pytest
import torch

from gyre.cell_agent.weights.nccl import PIECE_BYTES, NcclWeightSink, NcclWeightSource

HOST, KEY = "127.0.0.1", "of the job"
# More pieces than there are stages, the last one shorter.
NUM_BYTES = 3 * PIECE_BYTES + 12_345


def test_a_pull_over_nccl_brings_the_exposed_bytes_each_time(device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL has one rank a GPU, and there is one GPU")
    source = NcclWeightSource(HOST, key=KEY, allow_public=True, device=device)
    sink = NcclWeightSink(key=KEY, allow_public=True, device=torch.device("cuda", 1))
    for version in range(2):
        buffer = source.buffer(NUM_BYTES)
        content = torch.randint(256, (NUM_BYTES,), dtype=torch.uint8)
        torch.frombuffer(buffer.view, dtype=torch.uint8).copy_(content)
        source.expose(buffer, version=version, lineage=0)
        pulled = sink.pull(*source.address, version=version, lineage=0)
        assert torch.equal(torch.frombuffer(pulled.payload, dtype=torch.uint8), content)
    source.close()
