"""Model, KV slots and prefix cache together: what the scheduler drives.

Running requests occupy slots 0..n-1 without a gap: the batch then is a view of the slots, no
gather. When request i leaves, the last one's rows move into slot i. Slots are charged in
`prefill`, released in `release`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.prefix_cache import PrefixCache
from gyre.cell_agent.engine.local.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Sizes of the KV memory: `num_slots` sequences of `context_length` tokens at once,
    and `cache_tokens` rows of cached prefixes beside them."""

    num_slots: int
    context_length: int
    cache_tokens: int


class ModelRunner:
    """Owned by the model thread. `release_kv` and `allocate_kv` give memory back and take it.

    weights: names the weights in service. What was computed under others is neither found in the
    cache nor put there.
    """

    def __init__(self, model: Transformer, capacity: Capacity) -> None:
        self.model = model
        self.capacity = capacity
        self.running: list[Request] = []
        self.weights: Hashable = None
        self._slots: Tensor | None = None
        self._cache: PrefixCache | None = None
        self.allocate_kv()

    @property
    def kv_allocated(self) -> bool:
        """Whether the KV memory is there."""
        return self._slots is not None

    @property
    def lacks(self) -> str:
        """Why nothing can be computed now, and what to do; empty when it can."""
        if not (self.kv_allocated and self.model.parameters):
            return "memory is released: call /resume_memory_occupation first"
        return "the weights were released: load them first" if self.model.missing else ""

    @property
    def num_cached_tokens(self) -> int:
        """Rows of the prefix cache in use."""
        return self._cache.num_used_rows if self._cache is not None else 0

    @property
    def cache(self) -> PrefixCache:
        """The cached prefixes; the KV memory must be there."""
        return self._kv()[1]

    def namespace(self, request: Request) -> Hashable:
        """Where the request's prefixes are cached: by its keys and the weights in service."""
        return (*request.asked.namespace, self.weights)

    def allocate_kv(self) -> None:
        """Take the KV memory (zeros: masked rows are multiplied, so they must be finite)."""
        config, capacity = self.model.config, self.capacity
        layers, heads, dim = config.num_layers, config.num_groups, config.head_size
        self._slots = torch.zeros(
            layers, 2, capacity.num_slots, heads, capacity.context_length, dim
        )
        self._cache = PrefixCache(torch.zeros(layers, 2, heads, capacity.cache_tokens, dim))

    def release_kv(self) -> None:
        """Give the KV memory back; the engine must be idle."""
        assert not self.running
        self._slots = self._cache = None

    def flush(self) -> None:
        """Forget all cached prefixes."""
        self._kv()[1].reset()

    def prefill(self, request: Request) -> Tensor:
        """Compute the request's tokens so far in a new slot and make it run.

        Returns logits [m, V] of the last m positions: 1, or all from `logprob_start_len` on
        when prompt logprobs were asked for. A cache hit is at most all tokens but one, since
        the last position's logits must be computed.
        """
        slots, cache = self._kv()
        tokens = request.sequence
        start_len = prompt_logprobs_from(request)
        hit_limit = len(tokens) - 1 if start_len is None else min(start_len, len(tokens) - 1)
        kv = slots[:, :, len(self.running)]
        rows = cache.match(self.namespace(request), tokens[:hit_limit])
        if rows:
            cache.read(rows, kv)
        computed = torch.tensor(tokens[len(rows) :])
        hidden = self.model.prefill(computed, len(rows), kv)
        cache.insert(self.namespace(request), tokens, kv)
        request.kv_of = self.weights
        self.running.append(request)
        if request.num_retractions == 0:
            request.cached_tokens = len(rows)
        wanted = 1 if start_len is None else len(tokens) - start_len
        return self.model.logits(hidden[-wanted:])

    def decode(self) -> Tensor:
        """Feed each running request's last token; return logits [n, V] of the next."""
        slots, _ = self._kv()
        tokens = torch.tensor([request.output_ids[-1] for request in self.running])
        positions = torch.tensor([request.num_tokens - 1 for request in self.running])
        return self.model.logits(self.model.decode(tokens, positions, slots))

    def release(self, request: Request, *, keep: bool) -> None:
        """Free the request's slot; `keep` its KV for later prefixes (all but the last token's)."""
        slots, cache = self._kv()
        slot = self.running.index(request)
        if keep and request.kv_of == self.weights:
            tokens = request.sequence[:-1]
            cache.insert(self.namespace(request), tokens, slots[:, :, slot])
        last = self.running.pop()
        if last is not request:
            filled = last.num_tokens
            slots[:, :, slot, :, :filled] = slots[:, :, len(self.running), :, :filled]
            self.running[slot] = last

    def _kv(self) -> tuple[Tensor, PrefixCache]:
        assert self._slots is not None, "KV memory is released"
        assert self._cache is not None
        return self._slots, self._cache


def prompt_logprobs_from(request: Request) -> int | None:
    """First prompt position whose logprob is still owed, or None."""
    asked = request.asked
    if not asked.return_logprob or asked.logprob_start_len is None or request.output_ids:
        return None
    start = asked.logprob_start_len
    return start if start < len(request.prompt) and not request.prompt_logprobs else None


def ranked(logprobs: Tensor, count: int) -> list[list[tuple[float, int]]]:
    """The `count` most likely (logprob, id) of each row of [m, V], descending."""
    values, ids = logprobs.topk(count, dim=-1)
    return [
        list(zip(row, row_ids, strict=True))
        for row, row_ids in zip(values.tolist(), ids.tolist(), strict=True)
    ]


def picked(logprobs: Tensor, ids: Sequence[int]) -> list[list[tuple[float, int]]]:
    """(logprob, id) of the given ids for each row of [m, V]."""
    values = logprobs[:, list(ids)].tolist()
    return [list(zip(row, ids, strict=True)) for row in values]
