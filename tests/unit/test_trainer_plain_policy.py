"""The plain policy, against which trainers are held, is itself held against transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.training import PlainPolicy, make_executions


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("llama", [False, True])
def test_the_plain_policy_is_transformers_model(tmp_path: Path, tied: bool, llama: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = make_tiny_model(tmp_path, tie_word_embeddings=tied, llama=llama)
    policy = PlainPolicy(read_weights(model), json.loads((model / "config.json").read_text()))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    executions = make_executions(random.Random(0), count=3, vocab_size=512)
    for path in [path for _, paths in executions for path in paths]:
        with torch.no_grad():
            logits = reference(torch.tensor([path.token_ids])).logits[0].log_softmax(-1)
        targets = torch.tensor(path.target_positions)
        chosen = torch.tensor(path.token_ids)[targets]
        expected = logits[targets - 1].gather(1, chosen[:, None])[:, 0]
        assert (policy.logprobs(path, 1.0) - expected).abs().max().item() < 1e-5
