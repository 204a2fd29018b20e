"""Micro-steps to train on, and the plain computation that a trainer is held against.

`PlainPolicy` is a Qwen3 or a Llama written out in a few lines, one sequence at a time, in any
precision; `plain_gradients` is eq. (5)-(6) over it with the plain-float objective. Nothing is
packed, shared, split or distributed here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gyre.core.microstep import NO_EDGE, Edge, ExecutionInfo, MicroStep, Row, TreeBlock
from gyre.core.objective import ExecutionTargets, ObjectiveSettings, batch_loss, execution_loss
from gyre.testkit.block_trees import merged
from gyre.testkit.tree_paths import path_of

if TYPE_CHECKING:
    from torch import Tensor


def make_executions(
    rng: random.Random,
    *,
    count: int,
    vocab_size: int,
    prefix_tokens: int = 12,
    turns: int = 3,
    turn_tokens: int = 8,
) -> list[tuple[ExecutionInfo, list[TreeBlock]]]:
    """Executions with a shared system prefix, each with one or two trajectories that share a
    history of their own; each trajectory is a block of one edge, laid flat. Behaviour
    log-probabilities are near uniform's, versions 3 and 4. TreeBlock.execution is 0 here;
    `make_micro_step` numbers them."""
    system = [rng.randrange(vocab_size) for _ in range(prefix_tokens)]
    return [
        _make_execution(rng, f"e{number}", system, vocab_size, turns, turn_tokens)
        for number in range(count)
    ]


def _make_execution(
    rng: random.Random, name: str, system: list[int], vocab_size: int, turns: int, size: int
) -> tuple[ExecutionInfo, list[TreeBlock]]:
    blocks = []
    history, trained = list(system), 0
    for _ in range(rng.choice([1, 2])):
        tokens, positions = list(history), list[int]()
        for _ in range(turns):
            tokens += [rng.randrange(vocab_size) for _ in range(size)]
            sampled = rng.randrange(1, size)
            positions += range(len(tokens), len(tokens) + sampled)
            tokens += [rng.randrange(vocab_size) for _ in range(sampled)]
        tokens += [rng.randrange(vocab_size) for _ in range(rng.randrange(3))]
        blocks.append(
            TreeBlock(
                execution=0,
                token_ids=tuple(tokens),
                edges=(Edge(start=0, stop=len(tokens), parent=NO_EDGE),),
                target_positions=tuple(positions),
                behaviour_logprobs=tuple(-6.0 + rng.uniform(-1, 1) for _ in positions),
                versions=tuple(rng.choice([3, 4]) for _ in positions),
            )
        )
        trained += len(positions)
        # The next trajectory branches off within this one, which is context there.
        history = tokens[: rng.randrange(len(system), len(tokens))]
    info = ExecutionInfo(
        execution=name,
        group=f"g{int(name[1:]) // 4}",
        advantage=rng.choice([-1.25, -0.5, 0.5, 1.0]),
        num_targets=trained,
        temperature=rng.choice([1.0, 0.7]),
    )
    return info, blocks


def make_micro_step(
    executions: Sequence[tuple[ExecutionInfo, Sequence[TreeBlock]]],
    *,
    batch: str,
    index: int,
    normalizer: int,
    blocks_per_row: int = 2,
    trees: bool = False,
    window_rows: int | None = None,
) -> MicroStep:
    """trees: an execution's blocks are merged where they share a prefix. window_rows: all rows
    unless it is given."""
    numbered = [
        replace(block, execution=number)
        for number, (_, blocks) in enumerate(executions)
        for block in (merged(blocks) if trees else blocks)
    ]
    rows = tuple(
        Row(blocks=tuple(numbered[start : start + blocks_per_row]))
        for start in range(0, len(numbered), blocks_per_row)
    )
    return MicroStep(
        batch=batch,
        index=index,
        row_tokens=max((row.num_tokens for row in rows), default=1),
        window_rows=window_rows or max(1, len(rows)),
        normalizer=normalizer,
        executions=tuple(info for info, _ in executions),
        rows=rows,
    )


class PlainPolicy:
    """A Qwen3, dense or of experts, or a Llama, over Hugging Face weights: config is config.json's
    object."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.weights = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
        self.config = config

    def logprobs(self, block: TreeBlock, temperature: float) -> Tensor:
        """log pi of the block's targets, in order, with gradient; path by path."""
        import torch

        targets = frozenset(block.target_positions)
        found: dict[int, Tensor] = {}
        for leaf in block.leaves:
            path = path_of(block, leaf)
            wanted = [n for n, place in enumerate(path) if place in targets and place not in found]
            tokens = torch.tensor([block.token_ids[place] for place in path])
            positions = torch.tensor(wanted, dtype=torch.int64)
            logits = self._hidden(tokens)[positions - 1] @ self._output().T / temperature
            chosen = torch.log_softmax(logits, -1).gather(1, tokens[positions][:, None])[:, 0]
            found |= {path[n]: value for n, value in zip(wanted, chosen, strict=True)}
        return torch.stack([found[place] for place in block.target_positions])

    def gradients(self) -> dict[str, Tensor]:
        return {name: w.grad for name, w in self.weights.items() if w.grad is not None}

    def _output(self) -> Tensor:
        tied = self.config["tie_word_embeddings"]
        return self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            normed = self._norm(hidden, at + "input_layernorm")
            hidden = hidden + self._attention(normed, at + "self_attn.")
            normed = self._norm(hidden, at + "post_attention_layernorm")
            hidden = hidden + self._feed_forward(normed, at + "mlp.")
        return self._norm(hidden, "model.norm")

    def _attention(self, hidden: Tensor, at: str) -> Tensor:
        import torch

        size = self.config["head_dim"]
        query, key, value = (
            (hidden @ self.weights[f"{at}{part}_proj.weight"].T).view(len(hidden), -1, size)
            for part in "qkv"
        )
        if self.config["model_type"] != "llama":
            query, key = self._norm(query, at + "q_norm"), self._norm(key, at + "k_norm")
        query, key = _rotated(query, self.config), _rotated(key, self.config)
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * size**-0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
        return mixed @ self.weights[at + "o_proj.weight"].T

    def _feed_forward(self, hidden: Tensor, at: str) -> Tensor:
        if self.config["model_type"] != "qwen3_moe":
            return self._gated(hidden, at)
        share = (hidden @ self.weights[at + "gate.weight"].T).softmax(-1)
        best = share.topk(self.config["num_experts_per_tok"], dim=-1).indices
        chosen = share * share.detach().new_zeros(share.shape).scatter(1, best, 1.0)
        if self.config["norm_topk_prob"]:
            chosen = chosen / chosen.sum(-1, keepdim=True)
        total = hidden.new_zeros(hidden.shape)
        for number, weight in enumerate(chosen.unbind(1)):
            total = total + weight[:, None] * self._gated(hidden, f"{at}experts.{number}.")
        return total

    def _gated(self, hidden: Tensor, at: str) -> Tensor:
        from torch.nn.functional import silu

        gate = silu(hidden @ self.weights[at + "gate_proj.weight"].T)
        up = hidden @ self.weights[at + "up_proj.weight"].T
        gated = gate * up
        down: Tensor = gated @ self.weights[at + "down_proj.weight"].T
        return down

    def _norm(self, values: Tensor, name: str) -> Tensor:
        scale: Tensor = (
            values.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        ).rsqrt()
        normed: Tensor = values * scale * self.weights[name + ".weight"]
        return normed


def _rotated(heads: Tensor, config: Mapping[str, Any]) -> Tensor:
    """[t, heads, d]. Angles in float32 in every precision, as all implementations have them."""
    import torch

    size = config["head_dim"]
    base = (config.get("rope_parameters") or config)["rope_theta"]
    frequency = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(len(heads), dtype=torch.float32), frequency).repeat(1, 2)
    cos, sin = angles.cos().to(heads.dtype)[:, None], angles.sin().to(heads.dtype)[:, None]
    left, right = heads.chunk(2, -1)
    return heads * cos + torch.cat([-right, left], -1) * sin


def plain_gradients(
    policy: PlainPolicy, steps: Iterable[MicroStep], settings: ObjectiveSettings
) -> float:
    """Accumulates the batch's gradient in `policy`, trajectory by trajectory; returns its loss."""
    import torch

    executions: list[ExecutionTargets] = []
    normalizer = 1
    for step in steps:
        normalizer = step.normalizer
        computed: dict[int, list[tuple[TreeBlock, Tensor]]] = defaultdict(list)
        for block in step.blocks:
            if block.target_positions:
                temperature = step.executions[block.execution].temperature
                computed[block.execution].append((block, policy.logprobs(block, temperature)))
        for number, pairs in computed.items():
            logprobs = torch.cat([values for _, values in pairs])
            targets = ExecutionTargets(
                advantage=step.executions[number].advantage,
                logprobs=tuple(logprobs.tolist()),
                behaviour_logprobs=tuple(p for b, _ in pairs for p in b.behaviour_logprobs),
            )
            slopes = torch.tensor(execution_loss(targets, settings).gradient, dtype=logprobs.dtype)
            (logprobs @ slopes / normalizer).backward()  # type: ignore[no-untyped-call]
            executions.append(targets)
    return batch_loss(executions, normalizer=normalizer, settings=settings)
