"""The policy as a Megatron GPTModel that computes shared prefixes once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import TrainerError
from gyre.cell_agent.trainer.megatron.megatron_core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    GPTModel,
    TransformerBlockSubmodules,
    TransformerConfig,
    gather_from_sequence_parallel_region,
    get_gpt_layer_local_spec,
    get_num_layers_to_build,
    on_the_host,
    parallel_state,
)
from gyre.cell_agent.trainer.model.core_attention import CoreAttention, core_attention_on
from gyre.cell_agent.trainer.model.layout import TokenShares, check_layout, own_layout
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, padded
from gyre.contracts.training_job import LayoutSection
from gyre.core.policy_config import PolicyConfig


class RMSNorm(torch.nn.RMSNorm):
    """Megatron's norm signature; its own local RMSNorm refuses sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class PolicyModel(GPTModel):  # type: ignore[misc]
    """GPTModel over a prefix tree: rotary angles by root-path position, logits only where asked."""

    def forward(self, tree: PrefixTree, chosen: Tensor) -> Tensor:
        """chosen: int64 [n], places in the tree's flat sequence, on the model's device. Returns
        logits [k, vocabulary] of those among them that this rank computes (`TokenShares.among`), of
        its part of the vocabulary.

        A pipeline stage that is not the first takes what `set_input_tensor` gave it in the tokens'
        place; one that is not the last returns hidden states [s, 1, hidden] for the next, of
        `TokenShares.hidden` tokens.
        """
        shares = TokenShares.own()
        own, here = shares.among(chosen, tree.num_tokens), shares.here(tree.num_tokens)
        tree = padded(tree, shares.padded(tree.num_tokens))
        positions = torch.from_numpy(tree.positions).to(chosen.device)
        # Not by its forward, which keeps the last angles and cuts them for its own context shares.
        angles = self.rotary_pos_emb.get_emb(int(tree.positions.max()) + 1)
        embedded = None
        if self.pre_process:
            token_ids = torch.from_numpy(tree.token_ids).to(chosen.device)[None, here]
            embedded = self.embedding(input_ids=token_ids, position_ids=positions[None, here])
        hidden: Tensor = self.decoder(
            hidden_states=embedded,
            attention_mask=None,
            rotary_pos_emb=angles[positions[here]],
            attention_bias=self._core_attention().mask(tree, angles.device),
        )
        return self._logits(hidden, chosen[own] - here.start) if self.post_process else hidden

    def _logits(self, hidden: Tensor, places: Tensor) -> Tensor:
        """places: in this rank's share of the sequence."""
        if self.config.sequence_parallel:
            # Every tensor rank goes on with the same tokens; the output layer sums its gradient.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        weight = None
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        logits, _ = self.output_layer(hidden[places], weight=weight)
        answer: Tensor = logits[:, 0]
        return answer

    def _core_attention(self) -> CoreAttention:
        attention: CoreAttention = self.decoder.layers[0].self_attention.core_attention
        return attention


def build_module(
    policy: PolicyConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    recompute: bool = False,
    calculate_per_token_loss: bool = True,
) -> PolicyModel:
    """This rank's part of the model, by the layout of `start_cell_world`, on the host wherever it
    is to compute: its parameters are to be moved to the device before `with_gradients`.

    recompute: layers keep their input alone and are computed again going back.
    calculate_per_token_loss: of Megatron. Without it, its buffers would divide by the ranks in the
    reduction that we never start; so it changes nothing.

    Raises BadModel: a part of the model cannot be shared out evenly, or is not for this device.
    TrainerError: it is to compute on the CPU and a GPU is visible. Megatron would put gradients and
    rotary angles on that one.
    """
    if device == CPU and torch.cuda.is_available():
        raise TrainerError(
            "a GPU is visible, and this trainer computes on the CPU: "
            "start it with CUDA_VISIBLE_DEVICES set to nothing"
        )
    check_layout(policy, own_layout(), on_gpu=device != CPU)
    config = _transformer_config(policy, dtype, recompute, calculate_per_token_loss)
    with on_the_host():
        model = PolicyModel(
            config,
            _block_spec(config, device),
            policy.vocab_size,
            policy.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=policy.tied_embeddings,
            position_embedding_type="rope",
            rotary_base=policy.rope_base,
        )
    if model.post_process and config.sequence_parallel:
        # It takes tokens that were chosen from the gathered sequence.
        model.output_layer.sequence_parallel = False
        model.output_layer.allreduce_dgrad = True
    return model


def with_gradients(module: PolicyModel) -> DistributedDataParallel:
    """In Megatron's gradient buffers (`param.main_grad`, float32 or wider), on this process's
    device, whose own reduction is never started: gradients of micro-steps, ranks and cells are
    summed, by us. Raises RuntimeError: they find no memory."""
    config: TransformerConfig = module.config
    buffers = DistributedDataParallelConfig(
        grad_reduce_in_fp32=config.params_dtype != torch.float64,
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
    )
    return DistributedDataParallel(config, buffers, module)


def _transformer_config(
    policy: PolicyConfig, dtype: torch.dtype, recompute: bool, calculate_per_token_loss: bool
) -> TransformerConfig:
    layout = own_layout()
    return TransformerConfig(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        sequence_parallel=layout.sequence_parallel,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        # A unit is as long as its tree, which the stream's header says: no shape is sent besides.
        variable_seq_lengths=False,
        deallocate_pipeline_outputs=True,
        num_layers=policy.num_layers,
        hidden_size=policy.hidden_size,
        num_attention_heads=policy.num_heads,
        num_query_groups=policy.num_groups,
        kv_channels=policy.head_size,
        ffn_hidden_size=policy.ffn_size,
        **_experts(policy, dtype, layout),
        normalization="RMSNorm",
        layernorm_epsilon=policy.norm_eps,
        qk_layernorm=policy.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        calculate_per_token_loss=calculate_per_token_loss,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )


def _experts(policy: PolicyConfig, dtype: torch.dtype, layout: LayoutSection) -> dict[str, Any]:
    """No loss of its own balances experts: the job's objective is all there is."""
    experts = policy.experts
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.chosen,
        "moe_ffn_hidden_size": experts.ffn_size,
        "moe_router_pre_softmax": not experts.normalized,
        "moe_router_dtype": "fp64" if dtype == torch.float64 else "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        # Data ranks differ in tokens, which alltoall alone can share out. Where an expert is cut,
        # it would gather parts of unequal size, and gloo cannot.
        "moe_token_dispatcher_type": "alltoall" if layout.expert > 1 else "allgather",
    }


def _block_spec(config: TransformerConfig, device: torch.device) -> TransformerBlockSubmodules:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        normalization="RMSNorm",
        qk_layernorm=config.qk_layernorm,
    )
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    attention.core_attention = core_attention_on(device.type)
    num_layers = get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=[spec] * num_layers, layer_norm=RMSNorm)
