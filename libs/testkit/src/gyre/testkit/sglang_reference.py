"""What the logprobs of sampled tokens ought to be: told by others than the run that sampled them.

A recorded token is forced on two judges in one pass, without a cache: transformers' own model in
fp32, and the engine itself by a second request. Both must agree with the record to TOLERANCE.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

TOLERANCE = 1e-3
"""Nats, of engines that compute in fp32: they differ by the order of sums, some 1e-5. In bf16 the
same comparison is off by 4e-3 on such a model. A wrong context is off by 0.1 and more."""


class Reference:
    """A checkpoint in transformers, fp32."""

    def __init__(self, model: Path) -> None:
        from transformers import Qwen3ForCausalLM

        loaded: Any = Qwen3ForCausalLM.from_pretrained(str(model), local_files_only=True)
        self._model = loaded.float().eval()

    def logprobs(
        self, context: Sequence[int], output: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        """Natural log of each output token's probability after everything before it."""
        import torch

        tokens = torch.tensor([[*context, *output]])
        with torch.no_grad():
            logits = self._model(tokens).logits[0, len(context) - 1 : -1] / temperature
        chosen = tokens[0, len(context) :, None]
        return torch.log_softmax(logits, -1).gather(1, chosen)[:, 0].tolist()


async def logprobs_of_engine(
    url: str, context: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The same at temperature 1, by the engine at `url` and the weights that it has now."""
    body = {
        "input_ids": [*context, *output],
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        response = await http.post("/generate", json=body)
    response.raise_for_status()
    entries = response.json()["meta_info"]["input_token_logprobs"]
    told = entries[len(entries) - len(output) :]
    # SGLang names the vocabulary's last token 0 here, and here alone.
    assert all(entry[1] in (token, 0) for entry, token in zip(told, output, strict=True))
    return [float(entry[0]) for entry in told]


def furthest(recorded: Sequence[float], judged: Sequence[float]) -> float:
    """The largest difference of the two, in nats."""
    return max(abs(one - other) for one, other in zip(recorded, judged, strict=True))
