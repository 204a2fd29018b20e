"""From logits to log pi(y_u | c_u) and entropy at the recorded temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPolicy:
    """logprobs: [n], with gradient. entropy: [n], nats, without."""

    logprobs: Tensor
    entropy: Tensor


def token_policy(logits: Tensor, token_ids: Tensor, temperature: Tensor) -> TokenPolicy:
    """logits: [n, vocabulary]; token_ids: int64 [n]; temperature: [n], as the engine sampled with.

    Engines report log-probabilities after division by the temperature; so do we.
    """
    scaled = logits / temperature.to(logits.dtype)[:, None]
    distribution = torch.log_softmax(scaled, dim=-1)
    logprobs = distribution.gather(1, token_ids[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return TokenPolicy(logprobs=logprobs, entropy=entropy)
