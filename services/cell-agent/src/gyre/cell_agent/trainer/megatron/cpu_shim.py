"""Lets megatron-core run without CUDA. Does nothing where CUDA is there.

Imported before megatron, in trainer processes only: it replaces functions of torch for the whole
process. tests/unit/test_trainer_cpu_shim.py holds it against the pinned megatron-core.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange")
# The optimizers tell full precision from half by these strings. On a CPU both full ones pass.
_TYPES = {
    "torch.FloatTensor": "torch.cuda.FloatTensor",
    "torch.DoubleTensor": "torch.cuda.FloatTensor",
    "torch.BFloat16Tensor": "torch.cuda.BFloat16Tensor",
}


def install() -> None:
    """Idempotent: what is replaced is replaced once."""
    if torch.cuda.is_available() or torch.compile is _uncompiled:
        return
    # Megatron's fused functions are torch.compile; compiling C++ costs more than tiny kernels gain.
    # With dynamo disabled torch.compile changes nothing, yet it loads the whole compiler: a third
    # of the process's start. So it is replaced as well. With CUDA neither is done: FlexAttention is
    # compiled.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    torch.compile = _uncompiled
    _redirect_devices()
    _rename_tensor_types()
    _redirect_random_state()
    _complete_router()


def _uncompiled(model: Any = None, **_: Any) -> Any:
    """torch.compile as a function and as a decorator with arguments."""
    return model if model is not None else _uncompiled


def _redirect_devices() -> None:
    # current_device() is only ever used as a device= argument.
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment, return-value]
    # One function each: torch's own tables refuse the same object under two names.
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return wrapped


def _rename_tensor_types() -> None:
    original = torch.Tensor.type

    def tensor_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return _TYPES.get(answer, answer) if isinstance(answer, str) else answer

    torch.Tensor.type = tensor_type  # type: ignore[method-assign, assignment]


def _redirect_random_state() -> None:
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    from megatron.core.tensor_parallel import random as megatron_random

    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _complete_router() -> None:
    """Without Transformer Engine the experts' router asks for a name that was not imported."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
