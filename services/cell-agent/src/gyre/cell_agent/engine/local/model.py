"""A dense Qwen3's or Llama's forward pass in fp32 on a CPU, over a KV store that the caller owns.

Shapes used below: n rows of a decode batch, L tokens of a prefill, H query heads, K key-value
heads, G = H / K, D head size, T rows of a slot. A slot's KV store is `[2, K, T, D]` (keys, then
values): one head's rows lie together, which attention over many slots needs (interleaved heads
were 2-4 times slower). RoPE is applied before a key is stored, so a stored row belongs to one
position.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from gyre.cell_agent.engine.local.weights import State
from gyre.core.policy_config import PolicyConfig
from gyre.core.policy_weights import EMBEDDING, LM_HEAD, weight_shapes


class Layer:
    """One decoder layer's parameters; projections that share an input are stored fused. The head
    norms are Qwen3's: a Llama's layer has none of them."""

    def __init__(self, config: PolicyConfig) -> None:
        hidden, inner, dim = config.hidden_size, config.ffn_size, config.head_size
        heads = config.num_heads + config.num_groups
        self.qkv = torch.zeros((heads + config.num_groups) * dim, hidden)
        self.out = torch.zeros(hidden, config.num_heads * dim)
        self.gate_up = torch.zeros(2 * inner, hidden)
        self.down = torch.zeros(hidden, inner)
        self.input_norm = torch.zeros(hidden)
        self.post_norm = torch.zeros(hidden)
        self.q_norm = torch.zeros(dim)
        self.k_norm = torch.zeros(dim)
        self.qk_norm = torch.zeros(heads, dim)
        self.num_heads = config.num_heads

    def parameters(self, prefix: str, config: PolicyConfig) -> dict[str, Tensor]:
        """Hugging Face name -> view into the fused storage (writing one writes the other)."""
        queries = config.num_heads * config.head_size
        keys = config.num_groups * config.head_size
        inner = config.ffn_size
        norms = {
            f"{prefix}.self_attn.q_norm.weight": self.q_norm,
            f"{prefix}.self_attn.k_norm.weight": self.k_norm,
        }
        return {
            f"{prefix}.input_layernorm.weight": self.input_norm,
            f"{prefix}.post_attention_layernorm.weight": self.post_norm,
            f"{prefix}.self_attn.q_proj.weight": self.qkv[:queries],
            f"{prefix}.self_attn.k_proj.weight": self.qkv[queries : queries + keys],
            f"{prefix}.self_attn.v_proj.weight": self.qkv[queries + keys :],
            f"{prefix}.self_attn.o_proj.weight": self.out,
            **(norms if config.qk_norm else {}),
            f"{prefix}.mlp.gate_proj.weight": self.gate_up[:inner],
            f"{prefix}.mlp.up_proj.weight": self.gate_up[inner:],
            f"{prefix}.mlp.down_proj.weight": self.down,
        }

    def refresh(self) -> None:
        """Lay the two head norms out one row a head, as the fused q-k block needs them."""
        self.qk_norm[: self.num_heads] = self.q_norm
        self.qk_norm[self.num_heads :] = self.k_norm


class Transformer:
    """Parameters and forward passes; not thread-safe, owned by the model thread.

    parameters: by Hugging Face name; none while their memory is given back. missing: those that
    were taken again and not loaded since: nothing may be computed with them.
    """

    def __init__(self, config: PolicyConfig, num_positions: int) -> None:
        self.config = config
        self.missing: frozenset[str] = frozenset()
        self.parameters: dict[str, Tensor] = {}
        self._rope = _rope_table(config, num_positions)
        self._make()

    def release(self) -> None:
        """Give the parameters' memory back."""
        self.parameters = {}
        self.embedding = self.head = self.norm = torch.zeros(0)
        self.layers: list[Layer] = []

    def allocate(self) -> None:
        """Take it again: what was in it must be loaded."""
        self._make()
        self.missing = frozenset(self.parameters)

    def _make(self) -> None:
        config = self.config
        self.embedding = torch.zeros(config.vocab_size, config.hidden_size)
        self.head = self.embedding if config.tied_embeddings else torch.zeros_like(self.embedding)
        self.norm = torch.zeros(config.hidden_size)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.parameters = self._named_parameters()

    def _named_parameters(self) -> dict[str, Tensor]:
        named = {EMBEDDING: self.embedding, "model.norm.weight": self.norm}
        if not self.config.tied_embeddings:
            named[LM_HEAD] = self.head
        for index, layer in enumerate(self.layers):
            named |= layer.parameters(f"model.layers.{index}", self.config)
        assert {n: tuple(t.shape) for n, t in named.items()} == weight_shapes(self.config)
        return named

    def load(self, state: State, after_each: Callable[[], None] = lambda: None) -> None:
        """Copy checked tensors in place (any dtype; fp32 is kept); names may be a subset.
        after_each: called when one was copied, the next not yet."""
        for name, tensor in state.items():
            if name in self.parameters:
                self.parameters[name].copy_(tensor)
                after_each()
        self.missing -= state.keys()
        for layer in self.layers:
            layer.refresh()

    def prefill(self, tokens: Tensor, start: int, kv: Tensor) -> Tensor:
        """Run one sequence's tokens [L] at positions start..start+L-1; return hidden [L, d].

        `kv` [layers, 2, K, T, D] is the sequence's own slot: rows below `start` must be
        filled already, rows start..start+L-1 are written here.
        """
        end = start + tokens.shape[0]
        rope = self._rope[start:end]
        mask = _causal_mask(start, end) if tokens.shape[0] > 1 else None
        hidden = F.embedding(tokens, self.embedding)
        for layer, store in zip(self.layers, kv, strict=True):
            query, keys, values = self._project(layer, hidden, rope)
            store[0, :, start:end] = keys.transpose(0, 1)
            store[1, :, start:end] = values.transpose(0, 1)
            attended = self._attend_sequence(query, store[:, :, :end], mask)
            hidden = self._finish(layer, hidden, attended)
        return self._rms(hidden, self.norm)

    def decode(self, tokens: Tensor, positions: Tensor, kv: Tensor) -> Tensor:
        """Run one token each of n sequences; return hidden [n, d].

        `kv` [layers, 2, slots, K, T, D]; sequence i lives in slot i. `positions` [n] are the
        tokens' own; their rows are written here.
        """
        count, heads, dim = tokens.shape[0], self.config.num_groups, self.config.head_size
        longest = int(positions.max()) + 1
        reachable = torch.arange(longest) <= positions.unsqueeze(1)
        mask = reachable.view(count, 1, 1, longest)
        rope = self._rope.index_select(0, positions)
        rows = _flat_rows(positions, heads, kv.shape[4])
        hidden = F.embedding(tokens, self.embedding)
        for layer, store in zip(self.layers, kv, strict=True):
            query, keys, values = self._project(layer, hidden, rope)
            store[0].view(-1, dim).index_copy_(0, rows, keys.reshape(-1, dim))
            store[1].view(-1, dim).index_copy_(0, rows, values.reshape(-1, dim))
            attended = self._attend_batch(query, store[:, :count, :, :longest], mask)
            hidden = self._finish(layer, hidden, attended)
        return self._rms(hidden, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., V]."""
        return F.linear(hidden, self.head)

    def _project(self, layer: Layer, hidden: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norm, fused q-k-v, head norms if any, RoPE: [n, d] -> [n, H, D], [n, K, D], [n, K, D].

        `rope` [n, 2, 1, D] holds each position's cos and signed sin.
        """
        config = self.config
        heads, keys, dim = config.num_heads, config.num_groups, config.head_size
        fused = F.linear(self._rms(hidden, layer.input_norm), layer.qkv)
        fused = fused.view(-1, heads + 2 * keys, dim)
        mixed = fused[:, : heads + keys]
        if config.qk_norm:
            mixed = F.rms_norm(mixed, (dim,), None, config.norm_eps) * layer.qk_norm
        mixed = _rotate(mixed, rope[:, 0], rope[:, 1])
        return mixed[:, :heads], mixed[:, heads:], fused[:, heads + keys :]

    def _attend_sequence(self, query: Tensor, store: Tensor, mask: Tensor | None) -> Tensor:
        """[L, H, D] against one sequence's store [2, K, end, D] -> [L, H * D]."""
        config, length = self.config, query.shape[0]
        grouped = query.view(length, config.num_groups, config.group_size, config.head_size)
        grouped = grouped.permute(1, 2, 0, 3)  # [K, G, L, D]
        keys, values = store.unsqueeze(2)  # each [K, 1, end, D]
        attended = F.scaled_dot_product_attention(
            grouped,
            keys.expand(-1, config.group_size, -1, -1),
            values.expand(-1, config.group_size, -1, -1),
            attn_mask=mask,
        )
        return attended.permute(2, 0, 1, 3).reshape(length, -1)

    def _attend_batch(self, query: Tensor, store: Tensor, mask: Tensor) -> Tensor:
        """[n, H, D] against [2, n, K, longest, D] -> [n, H * D].

        The G query heads of one key-value head stand where attention expects query
        positions, so that grouped keys are never repeated in memory.
        """
        config, count = self.config, query.shape[0]
        grouped = query.reshape(count, config.num_groups, config.group_size, config.head_size)
        attended = F.scaled_dot_product_attention(grouped, store[0], store[1], attn_mask=mask)
        return attended.reshape(count, -1)

    def _finish(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        """Output projection, then the SwiGLU block, both residual."""
        hidden = hidden + F.linear(attended, layer.out)
        gate, up = F.linear(self._rms(hidden, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, layer.down)

    def _rms(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.norm_eps)


def _rope_table(config: PolicyConfig, num_positions: int) -> Tensor:
    """[positions, 2, 1, D]: cos, and sin with its sign folded in (one product rotates)."""
    exponents = torch.arange(0, config.head_size, 2).float() / config.head_size
    angles = torch.outer(torch.arange(num_positions).float(), config.rope_base**-exponents)
    cos, sin = angles.cos(), angles.sin()
    signed = torch.cat([-sin, sin], dim=1)
    return torch.stack([torch.cat([cos, cos], dim=1), signed], dim=1).unsqueeze(2)


def _flat_rows(positions: Tensor, num_heads: int, num_rows: int) -> Tensor:
    """Index of each (sequence, head)'s new row in slots flattened to [slots * K * T, D]."""
    blocks = torch.arange(positions.shape[0] * num_heads) * num_rows
    return blocks + positions.repeat_interleave(num_heads)


def _rotate(states: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Half-rotation RoPE: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([second, first], dim=-1) * signed_sin


def _causal_mask(start: int, end: int) -> Tensor:
    """[end - start, end] booleans: position start + i sees rows 0..start + i."""
    return torch.arange(end) <= torch.arange(start, end).unsqueeze(1)
