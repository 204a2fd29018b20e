"""The policy as a Megatron GPTModel that computes shared prefixes once."""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.core_attention import CoreAttention, core_attention_on
from gyre.cell_agent.trainer.errors import TrainerError
from gyre.cell_agent.trainer.hf_config import PolicyConfig
from gyre.cell_agent.trainer.megatron_core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    GPTModel,
    TransformerBlockSubmodules,
    TransformerConfig,
    get_gpt_layer_local_spec,
    get_num_layers_to_build,
    model_parallel_cuda_manual_seed,
    parallel_state,
)
from gyre.cell_agent.trainer.prefix_tree import PrefixTree


class RMSNorm(torch.nn.RMSNorm):
    """Megatron's norm signature; its own local RMSNorm refuses sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class PolicyModel(GPTModel):  # type: ignore[misc]
    """GPTModel over a prefix tree: rotary angles by root-path position, logits only where asked."""

    def forward(self, tree: PrefixTree, chosen: Tensor) -> Tensor:
        """chosen: int64 [n], places in the tree's flat sequence. Returns logits [n, vocabulary].

        A pipeline stage that is not the first takes what `set_input_tensor` gave it in the tokens'
        place; one that is not the last returns hidden states [t, 1, hidden] for the next.
        """
        token_ids = torch.from_numpy(tree.token_ids)[None]
        positions = torch.from_numpy(tree.positions)
        angles = self.rotary_pos_emb(int(positions.max()) + 1)[positions]
        embedded = None
        if self.pre_process:
            embedded = self.embedding(input_ids=token_ids, position_ids=positions[None])
        hidden: Tensor = self.decoder(
            hidden_states=embedded,
            attention_mask=None,
            rotary_pos_emb=angles,
            attention_bias=self._core_attention().mask(tree, angles.device),
        )
        if not self.post_process:
            return hidden
        weight = None
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        logits, _ = self.output_layer(hidden[chosen], weight=weight)
        answer: Tensor = logits[:, 0]
        return answer

    def _core_attention(self) -> CoreAttention:
        attention: CoreAttention = self.decoder.layers[0].self_attention.core_attention
        return attention


def start_cell_world(
    store: Store | None = None, *, stage: int = 0, num_stages: int = 1, timeout_s: float = 600.0
) -> None:
    """Megatron's world is the cell: its tensor, pipeline and data parallelism end here.
    store: where the cell's pipeline stages meet; a cell of one process needs none. timeout_s: of a
    stage's wait for another.

    It lives as long as the process. What crosses cells goes through world.py, whose groups come and
    go with the membership while modules and optimizer keep theirs.
    """
    dist.init_process_group(
        "gloo",
        store=store or HashStore(),
        rank=stage,
        world_size=num_stages,
        timeout=dt.timedelta(seconds=timeout_s),
    )
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=num_stages)
    # Mandatory even without dropout: attention looks its random state up by name.
    model_parallel_cuda_manual_seed(0)


def build_model(policy: PolicyConfig, dtype: torch.dtype) -> DistributedDataParallel:
    """This process's pipeline stage of the model, all of it in a cell of one process, in Megatron's
    gradient buffers (`param.main_grad`, float32 or wider), whose own reduction is never started:
    gradients of micro-steps and cells are summed, by us.

    Raises TrainerError: a GPU is visible. Megatron would put gradients and rotary angles on it,
    away from the parameters, which are made on the CPU.
    """
    if torch.cuda.is_available():
        raise TrainerError(
            "a GPU is visible, and this trainer computes on the CPU: "
            "start it with CUDA_VISIBLE_DEVICES set to nothing"
        )
    config = _transformer_config(policy, dtype)
    model = PolicyModel(
        config,
        _block_spec(config),
        policy.vocab_size,
        policy.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=policy.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=policy.rope_base,
    )
    buffers = DistributedDataParallelConfig(
        grad_reduce_in_fp32=dtype != torch.float64,
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
    )
    return DistributedDataParallel(model.config, buffers, model)


def _transformer_config(policy: PolicyConfig, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        # A row is as long as its tree. The dispatcher is of no use to a dense model, but the
        # default one refuses variable lengths.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106
        deallocate_pipeline_outputs=True,
        num_layers=policy.num_layers,
        hidden_size=policy.hidden_size,
        num_attention_heads=policy.num_heads,
        num_query_groups=policy.num_groups,
        kv_channels=policy.head_size,
        ffn_hidden_size=policy.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=policy.norm_eps,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # With it Megatron's buffers scale gradients by 1, not by 1 / data parallel size.
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )


def _block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=True)
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    attention.q_layernorm = attention.k_layernorm = RMSNorm
    # By where the parameters are made, not by what the machine has.
    attention.core_attention = core_attention_on("cpu" if config.use_cpu_initialization else "cuda")
    num_layers = get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=[spec] * num_layers, layer_norm=RMSNorm)
