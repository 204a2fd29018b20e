"""Which tensors a Hugging Face checkpoint of a policy has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gyre.cell_agent.trainer.errors import BadModel
from gyre.cell_agent.trainer.model.hf_config import PolicyConfig


def check_whole(weights: Mapping[str, Tensor], policy: PolicyConfig) -> None:
    """Raises BadModel: these are not the tensors of the model that config.json describes."""
    shapes = hf_shapes(policy)
    for name, shape in shapes.items():
        if name not in weights:
            raise BadModel(f"the weights lack {name}")
        if tuple(weights[name].shape) != shape:
            raise BadModel(
                f"{name} has shape {tuple(weights[name].shape)}, config.json says {shape}"
            )
    repeated = {"lm_head.weight"} if policy.tied_embeddings else set()
    rest = weights.keys() - shapes.keys() - repeated
    if rest:
        raise BadModel(f"the weights have a tensor that the model has not: {min(rest)}")


def hf_shapes(policy: PolicyConfig) -> dict[str, tuple[int, ...]]:
    """Of every tensor of the model, by Hugging Face names."""
    hidden, head = policy.hidden_size, policy.head_size
    queries, keys = policy.num_heads * head, policy.num_groups * head
    in_layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "post_attention_layernorm.weight": (hidden,),
        **_feed_forward(policy),
    }
    embedding = (policy.vocab_size, hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": (hidden,),
    }
    if not policy.tied_embeddings:
        shapes["lm_head.weight"] = embedding
    for layer in range(policy.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _feed_forward(policy: PolicyConfig) -> dict[str, tuple[int, ...]]:
    """Of one layer."""
    hidden, experts = policy.hidden_size, policy.experts
    if experts is None:
        return _gated("mlp.", hidden, policy.ffn_size)
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (experts.count, hidden)}
    for number in range(experts.count):
        shapes |= _gated(f"mlp.experts.{number}.", hidden, experts.ffn_size)
    return shapes


def _gated(at: str, hidden: int, size: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}gate_proj.weight": (size, hidden),
        f"{at}up_proj.weight": (size, hidden),
        f"{at}down_proj.weight": (hidden, size),
    }
