"""One cell's trainer: its weights, its place in the world, the batch under accumulation.

Invariants:
- weights never change while a batch is open, except by the update that closes it (`update.py`);
- a gradient buffer holds exactly the micro-steps listed in `accumulated`; if one of them was not
  finite, the batch's record says so and the update that closes the batch applies nothing;
- only the core has an optimizer;
- who leaves the world drops the accumulation: it belonged to that world's epoch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gyre.adapters.failpoints import failpoint
from gyre.cell_agent.trainer.batch_record import (
    MicroStepReport,
    report_empty,
    report_micro_step,
    report_non_finite,
)
from gyre.cell_agent.trainer.carriers import OpenBatch, WeightsName
from gyre.cell_agent.trainer.conversion import Weights, hf_to_megatron, megatron_to_hf
from gyre.cell_agent.trainer.errors import (
    BadMicroStep,
    BadModel,
    WrongState,
    WrongVersion,
)
from gyre.cell_agent.trainer.hf_config import PolicyConfig
from gyre.cell_agent.trainer.model import build_model
from gyre.cell_agent.trainer.optimizer import CoreOptimizer, OptimizerState, names_match
from gyre.cell_agent.trainer.packing import pack_micro_step
from gyre.cell_agent.trainer.passes import add_gradient
from gyre.cell_agent.trainer.settings import TrainerSettings
from gyre.cell_agent.trainer.statistics import Totals, target_totals
from gyre.cell_agent.trainer.world import CellWorld, Rendezvous
from gyre.core.microstep import MicroStep
from gyre.objective import NonFiniteLoss, ObjectiveError


class MegatronTrainer:
    """Commands call these methods from one thread; see the module's invariants."""

    def __init__(self, policy: PolicyConfig, dtype: torch.dtype) -> None:
        self.policy = policy
        self.model = build_model(policy, dtype)
        self.parameters: dict[str, Tensor] = dict(self.model.module.named_parameters())
        self.settings: TrainerSettings | None = None
        self.held: WeightsName | None = None
        self.open: OpenBatch | None = None
        self.world: CellWorld | None = None
        self.offloaded = False
        self._optimizer: CoreOptimizer | None = None
        self._saved_optimizer: OptimizerState | None = None

    # Weights

    def set_weights(self, weights: Weights, name: WeightsName) -> None:
        """All or nothing. Raises BadModel, WrongState (a batch is open)."""
        self._require_no_open_batch()
        incoming = hf_to_megatron(weights, self.policy)
        for key, parameter in self.parameters.items():
            if incoming[key].shape != parameter.shape:
                raise BadModel(
                    f"{key} has shape {tuple(incoming[key].shape)}, config.json says "
                    f"{tuple(parameter.shape)}"
                )
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(incoming[key])
        self.held = name

    def set_optimizer_state(self, state: OptimizerState | None) -> None:
        """None: start afresh. Used when the next update builds the optimizer."""
        if state is not None and not names_match(state, self.parameters):
            raise BadModel("the optimizer state belongs to another model")
        self._optimizer, self._saved_optimizer = None, state

    def weights(self) -> Weights:
        """Copies by Hugging Face names, contiguous."""
        detached = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return megatron_to_hf(detached, self.policy)

    def gradients(self) -> Weights:
        """Copies of the gradient buffers by Hugging Face names. Raises WrongState: offloaded."""
        if self.offloaded:
            raise WrongState("the gradient buffers are offloaded: restore first")
        buffers = {
            name: parameter.main_grad  # type: ignore[attr-defined]
            for name, parameter in self.parameters.items()
        }
        return megatron_to_hf(buffers, self.policy)

    def require_held(self) -> WeightsName:
        if self.held is None:
            raise WrongVersion("no complete weights are held: load_weights or pull_weights first")
        return self.held

    def optimizer_state(self) -> OptimizerState | None:
        """None on a cell that has never updated or loaded one."""
        return self._saved_optimizer if self._optimizer is None else self._optimizer.state()

    def core_optimizer(self) -> CoreOptimizer:
        """The core's, built by the first update. Raises WrongState: not configured."""
        if self._optimizer is None:
            settings = self.require_settings().optimizer
            self._optimizer = CoreOptimizer(self.model, settings, self._saved_optimizer)
            self._saved_optimizer = None
        return self._optimizer

    # Membership

    def form_world(self, rendezvous: Rendezvous) -> None:
        """Leaves the world before, and with it an accumulation: it belonged to a fenced epoch."""
        self.leave_world()
        self.world = CellWorld(rendezvous)

    def leave_world(self) -> None:
        if self.world is not None:
            self.world.close()
        self.world = None
        self.drop_accumulation()

    # Accumulation

    def begin_batch(self, batch: str, version: int) -> None:
        """Zeroes the gradients; what was open is dropped."""
        self.require_settings()
        if self.offloaded:
            raise WrongState("the gradient buffers are offloaded: restore first")
        if self.require_held().version != version:
            raise WrongVersion(f"version {version} is named, {self.require_held().version} is held")
        self.model.zero_grad_buffer()
        self.open = OpenBatch(batch=batch)

    def drop_accumulation(self) -> int:
        """Closes the batch without an update; returns how many micro-steps are lost with it."""
        dropped = len(self.open.accumulated) if self.open else 0
        self.open = None
        return dropped

    def micro_step(self, step: MicroStep) -> MicroStepReport:
        """Adds its gradient. One whose loss is not finite counts as done, and its report says that
        the step must not be applied. Raises BadMicroStep, WrongState: nothing was added."""
        batch = self.require_open_batch()
        if step.batch != batch.batch:
            raise WrongState(f"micro-step of batch {step.batch}, open is {batch.batch}")
        if step.index in batch.accumulated:
            raise WrongState(f"micro-step {step.index} is already in this accumulation")
        report = self._forward_backward(step) if step.num_targets else report_empty(step)
        failpoint("trainer.mid_accumulation")
        batch.accumulated.append(step.index)
        batch.record = batch.record.plus(report.record)
        return report

    def _forward_backward(self, step: MicroStep) -> MicroStepReport:
        packed = pack_micro_step(step, self.policy)
        tokens = Totals(
            num_path_tokens=step.num_path_tokens,
            num_computed_tokens=packed.num_computed_tokens,
            num_forwarded_tokens=packed.num_forwarded_tokens(),
        )
        try:
            policy, result = add_gradient(self.model, packed, self.require_settings().objective)
        except NonFiniteLoss as error:
            return report_non_finite(step, str(error), tokens)
        except ObjectiveError as error:
            raise BadMicroStep(f"micro-step {step.index}: {error}") from error
        sums = target_totals(
            policy, packed.targets, result, versions=packed.versions, versioned=packed.versioned
        )
        return report_micro_step(step, sums, result, tokens)

    # Role changes

    def offload(self) -> None:
        """Frees the gradient buffers for the engine. Raises WrongState: a batch is open."""
        self._require_no_open_batch()
        if not self.offloaded:
            self.model.offload_grad_buffers()
            if self._optimizer is not None:
                self._optimizer.offload()
        self.offloaded = True

    def restore(self) -> None:
        if self.offloaded:
            self.model.restore_grad_buffers()
            if self._optimizer is not None:
                self._optimizer.restore()
        self.offloaded = False

    # Guards

    def require_settings(self) -> TrainerSettings:
        if self.settings is None:
            raise WrongState("no settings: configure first")
        return self.settings

    def require_open_batch(self) -> OpenBatch:
        if self.open is None:
            raise WrongState("no batch is open: begin_batch first")
        return self.open

    def _require_no_open_batch(self) -> None:
        if self.open is not None:
            raise WrongState(f"batch {self.open.batch} is open: weights are frozen")

    def status(self) -> dict[str, Any]:
        return {
            "version": self.held.version if self.held else None,
            "lineage": self.held.lineage if self.held else None,
            "batch": self.open.batch if self.open else None,
            "accumulated": list(self.open.accumulated) if self.open else [],
            "epoch": self.world.epoch if self.world else None,
            "rank": self.world.rank if self.world else None,
            "size": self.world.size if self.world else None,
            "offloaded": self.offloaded,
            "num_parameters": sum(value.numel() for value in self.parameters.values()),
        }
