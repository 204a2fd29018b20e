"""Megatron's optimizer, on the core only: one clipped Adam update per batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.megatron.megatron_core import (
    DistributedDataParallel,
    OptimizerConfig,
    get_megatron_optimizer,
)
from gyre.cell_agent.trainer.optimizer_shares import OptimizerShares
from gyre.cell_agent.trainer.settings import OptimizerSettings

OptimizerState = dict[str, Any]
"""{"num_updates": int, "parameters": {Megatron name: {"exp_avg", "exp_avg_sq", "step"}}}, of what
this rank updates; "master" beside them where the model holds it in half precision."""

MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """grad_norm: before clipping, of the gradient summed over the batch. skip_reason: why neither
    weights nor optimizer state changed, `<class of error>: <words>`; empty when they did."""

    grad_norm: float
    lr: float
    skip_reason: str = ""

    @property
    def skipped(self) -> bool:
        return self.skip_reason != ""


class CoreOptimizer:
    """Mutates the model's parameters in `update`, and nothing else does between two loads.

    Parameters in half precision have float32 masters here, which the update is applied to and the
    parameters are rounded from; without them updates below a parameter's own precision would be
    lost. A fresh optimizer takes the parameters for their masters."""

    def __init__(
        self,
        model: DistributedDataParallel,
        settings: OptimizerSettings,
        state: OptimizerState | None = None,
    ) -> None:
        self._settings = settings
        self._parameters = dict(model.module.named_parameters())
        self._shares = OptimizerShares(self._parameters.values())
        with self._shares.own_alone():
            self._optimizer = get_megatron_optimizer(_config(settings, model), [model])
        self._count_every_parameter()
        self.num_updates = 0
        if state is not None:
            self._load(state)

    def update(self, refusal: str = "") -> Update:
        """One step from the gradients in the model's buffers. None when they are not finite, or
        with a `refusal`, the reason why this batch must not be applied."""
        lr = self._settings.lr_of_update(self.num_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
            group["weight_decay"] = self._settings.weight_decay * group.get("wd_mult", 1.0)
        try:
            self._optimizer.prepare_grads()
            grad_norm = float(self._optimizer.get_grad_norm())
            if not (refusal or math.isfinite(grad_norm)):
                refusal = f"non_finite_gradient: its norm is {grad_norm}"
            if refusal:
                return Update(grad_norm=grad_norm, lr=lr, skip_reason=refusal)
            self._optimizer.step()
            self._shares.exchange()
        finally:
            # Megatron lent its buffers to .grad; left there, backward would add to them twice.
            self._optimizer.zero_grad(set_to_none=True)
        self.num_updates += 1
        return Update(grad_norm=grad_norm, lr=lr)

    def state(self) -> OptimizerState:
        """Copies on the host, by parameter name: it outlives another layout of the buffers."""
        moments = self._moments()
        parameters = {}
        for name, parameter in self._parameters.items():
            main = _main(parameter)
            values = {key: value.to(CPU, copy=True) for key, value in moments.get(main, {}).items()}
            if main is not parameter:
                values[MASTER] = main.detach().to(CPU, copy=True)
            if values:
                parameters[name] = values
        return {"num_updates": self.num_updates, "parameters": parameters}

    def _load(self, state: OptimizerState) -> None:
        self.num_updates = state["num_updates"]
        states = {p: adam.state for adam in self._adams() for p in _stepped(adam)}
        for name, saved in state["parameters"].items():
            main = _main(self._parameters[name])
            values = {
                # A count of steps stays on the host, as Adam makes it.
                key: value.to(main.device if value.dim() else CPU, copy=True)
                for key, value in saved.items()
                if key != MASTER
            }
            if values:
                states[main][main] = values
            if MASTER in saved:
                main.data.copy_(saved[MASTER])

    def _adams(self) -> list[torch.optim.Optimizer]:
        """Megatron has one of its own for experts that other ranks do not hold."""
        return [part.optimizer for part in self._optimizer.chained_optimizers]

    def _moments(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """By main parameter; of those that were ever updated."""
        return {main: values for adam in self._adams() for main, values in adam.state.items()}

    def _count_every_parameter(self) -> None:
        """In the gradient's norm, which Megatron adds up over the ranks that share the model: here
        over all of the cell, in which each parameter's owner counts it once."""
        for part in self._optimizer.chained_optimizers:
            part.grad_stats_parallel_group = dist.group.WORLD

    def tensors(self) -> list[torch.Tensor]:
        """What it works on: the parameters or their masters, and the moments."""
        stepped = [p for adam in self._adams() for p in _stepped(adam)]
        kept = [value for values in self._moments().values() for value in values.values()]
        return [*stepped, *(value for value in kept if isinstance(value, torch.Tensor))]


def fits(state: OptimizerState, parameters: Mapping[str, torch.Tensor]) -> bool:
    """Whether a saved state belongs to a model with these parameters, in their precision."""
    saved = state["parameters"]
    return set(saved) <= set(parameters) and all(
        (MASTER in values) == _is_half(parameters[name]) for name, values in saved.items()
    )


def _is_half(parameter: torch.Tensor) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)


def _stepped(adam: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in adam.param_groups for parameter in group["params"]]


def _main(parameter: torch.Tensor) -> torch.Tensor:
    """What the optimizer steps: the parameter itself, or its float32 master."""
    main: torch.Tensor = getattr(parameter, "main_param", parameter)
    return main


def _config(settings: OptimizerSettings, model: DistributedDataParallel) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.eps,
        weight_decay=settings.weight_decay,
        clip_grad=settings.grad_clip,
        params_dtype=model.config.params_dtype,
        bf16=model.config.params_dtype == torch.bfloat16,
        use_distributed_optimizer=False,
    )
