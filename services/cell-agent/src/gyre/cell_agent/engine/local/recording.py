"""What a request keeps of each token: id, logprobs, version. Written by the model thread."""

from __future__ import annotations

from torch import Tensor

from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.runner import picked, ranked


def record(request: Request, token: int, value: float, logprobs: Tensor, version: str) -> None:
    """Append one sampled token; `logprobs` is its row [1, V]. `output_ids` grows last."""
    asked = request.asked
    request.note_version(version)
    if asked.return_logprob:
        request.logprobs.append(value)
        if asked.top_logprobs_num:
            request.top += ranked(logprobs, asked.top_logprobs_num)
        if asked.token_ids_logprob is not None:
            request.chosen += picked(logprobs, asked.token_ids_logprob)
    request.output_ids.append(token)


def record_prompt(request: Request, start: int, logits: Tensor) -> None:
    """Logprobs of prompt tokens start.. from logits [len - start, V] of those positions.

    Row i predicts the token after it, so position `start` itself has no value (None), and
    the last row is the first output token's.
    """
    asked = request.asked
    logprobs = (logits[:-1] / asked.sampling.temperature).log_softmax(dim=-1)
    following = request.prompt[start + 1 :]
    values = [row[token].item() for row, token in zip(logprobs, following, strict=True)]
    if asked.top_logprobs_num:
        request.prompt_top = [None, *ranked(logprobs, asked.top_logprobs_num)]
    if asked.token_ids_logprob is not None:
        request.prompt_chosen = [None, *picked(logprobs, asked.token_ids_logprob)]
    request.prompt_logprobs = [None, *values]
