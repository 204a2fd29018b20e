"""Everything this trainer takes from megatron-core, after the shim that lets it run without CUDA.

No other module imports megatron: one imported before the shim would bind what it replaces.
"""

from __future__ import annotations

from gyre.cell_agent.trainer import cpu_shim

cpu_shim.install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "OptimizerConfig",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "model_parallel_cuda_manual_seed",
    "parallel_state",
]
