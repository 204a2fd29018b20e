"""Weights by their Hugging Face names in, and out again, bit for bit, whatever the cell's layout.

mbridge knows what Megatron fuses that Hugging Face keeps apart, and how it cuts a tensor over the
tensor ranks. Its own models are of another layer specification than ours, whose norms are modules
of their own: hence the names in `_Ours`. Models, configuration and groups are ours.

A rank takes its own part of whole weights, so loading needs no other rank, and what is refused is
refused by all ranks alike. Out again every rank says what it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from gyre.cell_agent.trainer.megatron.mbridge_core import Qwen3Bridge, Qwen3MoEBridge
from gyre.cell_agent.trainer.megatron.megatron_core import on_the_host
from gyre.cell_agent.trainer.model.hf_weights import check_whole
from gyre.cell_agent.trainer.model.weights_io import Weights
from gyre.core.policy_config import PolicyConfig


class WeightBridge:
    """Between Hugging Face's names and this rank's part of a model, a module of `build_module`."""

    def __init__(self, policy: PolicyConfig, module: Any) -> None:
        self._policy = policy
        self._module = module
        self._parameters: dict[str, Tensor] = dict(module.named_parameters())
        family = _Dense if policy.experts is None else _Experts
        self._bridge: Any = family(policy, module.config)

    def own_part(self, weights: Mapping[str, Tensor]) -> Weights:
        """weights: of the whole model. Returns this rank's, by its parameters' names and in their
        precision; they may share memory with `weights`. A tied checkpoint may repeat its embedding
        as lm_head.weight; it is ignored.

        Raises BadModel: a tensor is missing, left over, or of another shape than config.json says.
        """
        check_whole(weights, self._policy)
        bridge, mpu = self._bridge, self._bridge.mpu
        found: Weights = {}
        for own, name in bridge._weight_name_mapping_mcore_local_to_global(self._module).items():
            parts = [weights[hf] for hf in bridge._weight_name_mapping_mcore_to_hf(name)]
            fused = bridge._weight_to_mcore_format(name, parts)
            size, rank = mpu.tp_size, mpu.tp_rank
            if ".mlp.experts." in own:
                size, rank = mpu.etp_size, mpu.etp_rank
            shares = bridge._weight_split_across_tp(name, fused, self._parameters[own], size)
            found[own] = shares[rank]
        return found

    def whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """tensors: this rank's, by all its parameters' names and of their shapes: the parameters
        themselves, or their gradients. Yields all of the model's by Hugging Face names, perhaps
        sharing memory with `tensors`; both ends of a pipeline give a tied embedding.

        Collective over the tensor, pipeline and expert ranks, which all have to draw it to its end.
        """
        for name, tensor in tensors.items():
            marks = self._parameters[name]
            for mark, absent in (("tensor_model_parallel", False), ("partition_dim", -1)):
                setattr(tensor, mark, getattr(marks, mark, absent))
        # Another stage's tensor is received into one of Megatron's making, where the sender's lies.
        on_host = all(tensor.device.type == "cpu" for tensor in tensors.values())
        with on_the_host() if on_host else nullcontext():
            yield from self._bridge.export_weights([_Named(self._module.decoder, tensors)])


class _Named:
    """What mbridge asks of a model when it exports one: any tensors under its parameters' names."""

    def __init__(self, decoder: Any, tensors: Mapping[str, Tensor]) -> None:
        self.decoder = decoder
        self._tensors = tensors

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._tensors.items()

    def state_dict(self) -> Mapping[str, Tensor]:
        return self._tensors


class _Ours:
    """What of mbridge's bridges is not as our models have it."""

    _OTHER_MAPPING = {  # noqa: RUF012
        "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"]
    }

    def __init__(self, policy: PolicyConfig, config: Any) -> None:
        # Of its own: mbridge writes the tied output layer into the class's.
        self._DIRECT_MAPPING = dict(Qwen3Bridge._DIRECT_MAPPING)
        if policy.tied_embeddings:
            self._DIRECT_MAPPING["output_layer.weight"] = "model.embed_tokens.weight"
        self._config = config
        shapes = SimpleNamespace(
            num_key_value_heads=policy.num_groups,
            num_attention_heads=policy.num_heads,
            hidden_size=policy.hidden_size,
            head_dim=policy.head_size,
            tie_word_embeddings=policy.tied_embeddings,
        )
        super().__init__(shapes, dtype=config.params_dtype)  # type: ignore[call-arg]

    def _build_config(self) -> Any:
        return self._config


class _Dense(_Ours, Qwen3Bridge):  # type: ignore[misc]
    _MLP_MAPPING = Qwen3Bridge._MLP_MAPPING | {
        "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"]
    }


class _Experts(_Ours, Qwen3MoEBridge):  # type: ignore[misc]
    def _weight_name_mapping_mcore_local_to_global(
        self, model: Any, consider_ep: bool = True
    ) -> dict[str, str]:
        """Our experts are modules of their own, mbridge's are weights of one. consider_ep: by their
        numbers in the whole model, not on this rank."""
        names = super()._weight_name_mapping_mcore_local_to_global(model, consider_ep=False)
        here = self._config.num_moe_experts // self.mpu.ep_size
        first = here * self.mpu.ep_rank if consider_ep else 0

        def ours(match: re.Match[str]) -> str:
            return f"{match[2]}.weight{first + int(match[1])}"

        expert = re.compile(r"local_experts\.(\d+)\.(\w+)\.weight")
        return {own: expert.sub(ours, name) for own, name in names.items()}
