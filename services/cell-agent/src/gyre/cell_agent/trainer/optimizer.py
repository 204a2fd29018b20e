"""Megatron's optimizer, on the core only: one clipped Adam update per batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gyre.cell_agent.trainer.megatron_core import (
    DistributedDataParallel,
    OptimizerConfig,
    get_megatron_optimizer,
)
from gyre.cell_agent.trainer.settings import OptimizerSettings

OptimizerState = dict[str, Any]
"""{"num_updates": int, "parameters": {Megatron name: {"exp_avg", "exp_avg_sq", "step"}}}."""


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
    """Mutates the model's parameters in `update`, and nothing else does between two loads."""

    def __init__(
        self,
        model: DistributedDataParallel,
        settings: OptimizerSettings,
        state: OptimizerState | None = None,
    ) -> None:
        self._settings = settings
        self._parameters = dict(model.module.named_parameters())
        self._optimizer = get_megatron_optimizer(_config(settings, model), [model])
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
        finally:
            # Megatron lent its buffers to .grad; left there, backward would add to them twice.
            self._optimizer.zero_grad(set_to_none=True)
        self.num_updates += 1
        return Update(grad_norm=grad_norm, lr=lr)

    def state(self) -> OptimizerState:
        """Copies, by parameter name, so that it outlives another layout of the buffers."""
        moments = self._moments()
        return {
            "num_updates": self.num_updates,
            "parameters": {
                name: {key: value.clone() for key, value in moments[parameter].items()}
                for name, parameter in self._parameters.items()
                if parameter in moments
            },
        }

    def _load(self, state: OptimizerState) -> None:
        self.num_updates = state["num_updates"]
        moments = self._moments()
        for name, values in state["parameters"].items():
            moments[self._parameters[name]] = {key: value.clone() for key, value in values.items()}

    def _moments(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        (adam,) = self._optimizer.chained_optimizers
        moments: dict[torch.Tensor, dict[str, torch.Tensor]] = adam.optimizer.state
        return moments

    def offload(self) -> None:
        """Off the accelerator while the cell serves; nothing to do on a CPU."""
        self._optimizer.offload_to_cpu()

    def restore(self) -> None:
        self._optimizer.restore_from_cpu()


def names_match(state: OptimizerState, parameters: Mapping[str, Any]) -> bool:
    """Whether a saved state belongs to a model with these parameters."""
    return set(state["parameters"]) <= set(parameters)


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
        use_distributed_optimizer=False,
    )
