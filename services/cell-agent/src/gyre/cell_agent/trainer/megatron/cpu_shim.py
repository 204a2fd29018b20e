"""Lets megatron-core run without CUDA. Where CUDA is there it only mends the experts' router.

Imported before megatron, in trainer processes only: it replaces functions of torch for the whole
process. tests/unit/test_trainer_cpu_shim.py holds it against the pinned megatron-core.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
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
    if torch.compile is _uncompiled:
        return
    if torch.cuda.is_available():
        _complete_router()
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
    _dispatch_without_streams()


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    """What Megatron makes meanwhile is made there, with CUDA too: a tied embedding that it would
    move to the GPU, to give both its copies the same numbers, stays."""
    replaced = torch.cuda.current_device, torch.Tensor.cuda
    _stay_on_the_host()
    try:
        yield
    finally:
        torch.cuda.current_device, torch.Tensor.cuda = replaced  # type: ignore[method-assign]


def _stay_on_the_host() -> None:
    # current_device() is only ever used as a device= argument.
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment, return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def _uncompiled(model: Any = None, **_: Any) -> Any:
    """torch.compile as a function and as a decorator with arguments."""
    return model if model is not None else _uncompiled


def _redirect_devices() -> None:
    _stay_on_the_host()
    # One function each: torch's own tables refuse the same object under two names.
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
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


def _dispatch_without_streams() -> None:
    """Experts' tokens go to their ranks by counts that are copied off a GPU on a stream of their
    own. Here they are where they should be, but for collectives that want no tensors."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    def read_counts(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
        if point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                counts = getattr(self, name)
                setattr(self, name, None if counts is None else counts.numpy())
        return tokens_per_expert

    # Anything but None: no stream is made then.
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = "none"
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = read_counts
