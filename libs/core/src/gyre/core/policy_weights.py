"""Which tensors a policy has, by the names that Hugging Face's checkpoints give them."""

from __future__ import annotations

from gyre.core.policy_config import PolicyConfig

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
"""A tied model has none; a checkpoint of one may repeat the embedding under it."""

Shape = tuple[int, ...]


def weight_shapes(policy: PolicyConfig) -> dict[str, Shape]:
    """Of every tensor of the model."""
    hidden, head = policy.hidden_size, policy.head_size
    queries, keys = policy.num_heads * head, policy.num_groups * head
    normed = "qk" if policy.qk_norm else ""
    in_layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        **{f"self_attn.{part}_norm.weight": (head,) for part in normed},
        "post_attention_layernorm.weight": (hidden,),
        **_feed_forward(policy),
    }
    embedding = (policy.vocab_size, hidden)
    shapes: dict[str, Shape] = {EMBEDDING: embedding, "model.norm.weight": (hidden,)}
    if not policy.tied_embeddings:
        shapes[LM_HEAD] = embedding
    for layer in range(policy.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _feed_forward(policy: PolicyConfig) -> dict[str, Shape]:
    """Of one layer."""
    hidden, experts = policy.hidden_size, policy.experts
    if experts is None:
        return _gated("mlp.", hidden, policy.ffn_size)
    shapes: dict[str, Shape] = {"mlp.gate.weight": (experts.count, hidden)}
    for number in range(experts.count):
        shapes |= _gated(f"mlp.experts.{number}.", hidden, experts.ffn_size)
    return shapes


def _gated(at: str, hidden: int, size: int) -> dict[str, Shape]:
    return {
        f"{at}gate_proj.weight": (size, hidden),
        f"{at}up_proj.weight": (size, hidden),
        f"{at}down_proj.weight": (hidden, size),
    }
