"""What SGLang 0.5.23 says of its weights when they are these.

Its `/weights_checker` digests its own parameters, in which the projections of a layer are fused and
the vocabulary is padded: each tensor's bytes in the model's precision, then names and digests in
name order, then the ranks. On a CPU the digest is SHA-256, so that it can be computed here from the
weights by their Hugging Face names. On a GPU it is a kernel's own: what is asked there is said in
`client.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from gyre.cell_agent.engine.errors import BadWeightsError
from gyre.cell_agent.engine.tensors import TensorView, as_float32
from gyre.core.policy_weights import EMBEDDING, LM_HEAD

VOCABULARY_MULTIPLE = 64
"""SGLang pads the vocabulary to it, with zeros."""

FUSED: Mapping[str, Sequence[str]] = {
    "self_attn.qkv_proj.weight": (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
    ),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
"""A layer's fused parameter -> the parameters that it stacks, in order."""

_HASH_BYTES = 8


def cpu_checksum(weights: Mapping[str, TensorView], *, tied: bool) -> str:
    """`per_engine_checksum` of one rank in fp32 on a CPU, whatever precision the weights have.

    tied: the output layer is the embedding, and no parameter of its own. Raises BadWeightsError:
    a layer lacks one of those that are fused.
    """
    digests = dict(_digests(weights, tied))
    rank = hashlib.sha256()
    for name in sorted(digests):
        rank.update(name.encode())
        rank.update(digests[name].encode())
    return hashlib.sha256(rank.hexdigest().encode()).hexdigest()


def _digests(weights: Mapping[str, TensorView], tied: bool) -> Iterator[tuple[str, str]]:
    """Each parameter of SGLang's with its digest."""
    stacked = {part: fused for fused, parts in FUSED.items() for part in parts}
    for name, view in weights.items():
        if name == LM_HEAD and tied:
            continue
        layer, place = _split(name)
        fused = stacked.get(place)
        if fused is None:
            yield name, _digest([view], padded=name in (EMBEDDING, LM_HEAD))
        elif place == FUSED[fused][0]:
            parts = [weights.get(layer + part) for part in FUSED[fused]]
            whole = [part for part in parts if part is not None]
            if len(whole) < len(parts):
                raise BadWeightsError(f"{layer}: not all of {', '.join(FUSED[fused])}")
            yield layer + fused, _digest(whole, padded=False)


def _split(name: str) -> tuple[str, str]:
    """("model.layers.7.", "mlp.up_proj.weight"); ("", name) of what is in no layer."""
    parts = name.split(".", 3)
    if parts[:2] != ["model", "layers"] or len(parts) < 4:
        return "", name
    return ".".join(parts[:3]) + ".", parts[3]


def _digest(views: Sequence[TensorView], *, padded: bool) -> str:
    """Of the tensors stacked by rows; padded: with rows of zeros up to VOCABULARY_MULTIPLE."""
    digest = hashlib.sha256()
    for view in views:
        digest.update(as_float32(view))
    if padded:
        rows, columns = views[0].shape
        digest.update(bytes((-rows % VOCABULARY_MULTIPLE) * columns * 4))
    return f"{int.from_bytes(digest.digest()[:_HASH_BYTES], 'big'):016x}"
