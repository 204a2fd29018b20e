"""Whether weights are those of a policy."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gyre.cell_agent.trainer.errors import BadModel
from gyre.core.policy_config import PolicyConfig
from gyre.core.policy_weights import LM_HEAD, weight_shapes


def check_whole(weights: Mapping[str, Tensor], policy: PolicyConfig) -> None:
    """Raises BadModel: these are not the tensors of the model that config.json describes."""
    shapes = weight_shapes(policy)
    for name, shape in shapes.items():
        if name not in weights:
            raise BadModel(f"the weights lack {name}")
        if tuple(weights[name].shape) != shape:
            raise BadModel(
                f"{name} has shape {tuple(weights[name].shape)}, config.json says {shape}"
            )
    repeated = {LM_HEAD} if policy.tied_embeddings else set()
    rest = weights.keys() - shapes.keys() - repeated
    if rest:
        raise BadModel(f"the weights have a tensor that the model has not: {min(rest)}")
