"""Everything this trainer takes from megatron-core, after the shim that lets it run without CUDA.

No other module imports megatron: one imported before the shim would bind what it replaces.
"""

from __future__ import annotations

from gyre.cell_agent.trainer.megatron import cpu_shim

cpu_shim.install()
on_the_host = cpu_shim.on_the_host

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.distributed.finalize_model_grads import (  # noqa: E402
    _allreduce_non_tensor_model_parallel_grads as sum_replicated_gradients,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator  # noqa: E402
from megatron.core.pipeline_parallel.schedules import (  # noqa: E402
    backward_step,
    deallocate_output_tensor,
)
from megatron.core.tensor_parallel import (  # noqa: E402
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer.transformer_block import (  # noqa: E402
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "OptimizerConfig",
    "P2PCommunicator",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "backward_step",
    "deallocate_output_tensor",
    "gather_from_sequence_parallel_region",
    "get_cuda_rng_tracker",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "get_num_layers_to_build",
    "model_parallel_cuda_manual_seed",
    "on_the_host",
    "parallel_state",
    "sum_replicated_gradients",
]
