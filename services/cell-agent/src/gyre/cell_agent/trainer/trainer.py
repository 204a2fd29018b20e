"""One cell's trainer: its weights, its place in the world, the batch under accumulation.

Invariants:
- weights never change while a batch is open, except by the update that closes it (`update.py`);
- after a flush a gradient buffer holds exactly the micro-steps listed in `accumulated`; if one of
  them was not finite, the batch's record says so and the update that closes the batch applies
  nothing;
- only the core has an optimizer;
- who leaves the world drops the accumulation: it belonged to that world's epoch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.batch.accumulation import Accumulation
from gyre.cell_agent.trainer.batch.batch_record import MicroStepReport
from gyre.cell_agent.trainer.batch.clock import Clock
from gyre.cell_agent.trainer.batch.headers import HeaderLine
from gyre.cell_agent.trainer.batch.inbox import Work
from gyre.cell_agent.trainer.batch.stream import Stream
from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import (
    BadMicroStep,
    BadModel,
    WrongState,
    WrongVersion,
)
from gyre.cell_agent.trainer.megatron.megatron_core import (
    DistributedDataParallel,
    parallel_state,
)
from gyre.cell_agent.trainer.memory import TrainerMemory, resident
from gyre.cell_agent.trainer.model.bridge import WeightBridge
from gyre.cell_agent.trainer.model.layout import own_coordinate, own_data_share, own_layout
from gyre.cell_agent.trainer.model.packing import pack_micro_step
from gyre.cell_agent.trainer.model.policy import build_module, with_gradients
from gyre.cell_agent.trainer.model.stages import Stage, own_stage
from gyre.cell_agent.trainer.model.weights_io import Weights
from gyre.cell_agent.trainer.optimizer import CoreOptimizer, OptimizerState, fits
from gyre.cell_agent.trainer.ranks.world import CellWorld, Rendezvous
from gyre.cell_agent.trainer.settings import TrainerSettings
from gyre.core.microstep import MicroStep
from gyre.core.policy_config import PolicyConfig
from gyre.objective import ObjectiveError


class MegatronTrainer:
    """Commands call these methods from one thread; see the module's invariants."""

    def __init__(
        self, policy: PolicyConfig, dtype: torch.dtype, device: torch.device, **options: bool
    ) -> None:
        """options: of `build_module`. On a GPU it begins offloaded. Raises TrainerError."""
        self.policy, self.device = policy, device
        module = build_module(policy, dtype, device, **options)
        self.parameters: dict[str, Tensor] = dict(module.named_parameters())
        self._bridge = WeightBridge(policy, module)
        self._line = HeaderLine()
        self.cell = 0
        self.tokens_per_s: float | None = None
        # How long the weights of the next batch were pulled for.
        self.pull_s = 0.0
        self.settings: TrainerSettings | None = None
        self.held: WeightsName | None = None
        self.open: Accumulation | None = None
        self.world: CellWorld | None = None
        self._optimizer: CoreOptimizer | None = None
        self._saved_optimizer: OptimizerState | None = None
        buffered = partial(with_gradients, module)
        self.memory = TrainerMemory(module, device, buffered, self._tensors)

    @property
    def model(self) -> DistributedDataParallel:
        """Raises WrongState: it begins offloaded, and was never restored."""
        return self.memory.model

    @property
    def stage(self) -> Stage:
        """Raises WrongState, as `model`."""
        return own_stage(self.model)

    # Weights

    @resident
    def set_weights(self, weights: Weights, name: WeightsName) -> None:
        """weights: of the whole model; each rank of the cell takes its part. All or nothing.
        Raises BadModel, WrongState (a batch is open)."""
        self._require_no_open_batch()
        incoming = self._bridge.own_part(weights)
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(incoming[key])
        self.held = name

    @resident
    def set_optimizer_state(self, state: OptimizerState | None) -> None:
        """None: start afresh. Used when the next update builds the optimizer."""
        if state is not None and not fits(state, self.parameters):
            raise BadModel("the optimizer state belongs to another model")
        self._optimizer, self._saved_optimizer = None, state
        # Megatron's optimizers refer to themselves: the old one's moments would stay for a while.
        gc.collect()

    @resident
    def weights(self) -> Weights:
        """Copies on the host by Hugging Face names, contiguous: whole on the cell's first rank,
        empty on the others, for what leaves a cell leaves it there. All ranks of the cell call
        it."""
        return _copied(self._whole(self._detached()))

    @resident
    def give_weights(self, take: Callable[[str, Tensor], None]) -> None:
        """As `weights`, without a copy: `take` is called with each, which is on the device and may
        share memory with the parameters. All ranks of the cell call it."""
        for name, value in self._whole(self._detached()):
            take(name, value)

    def _detached(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.parameters.items()}

    def gradients(self) -> Weights:
        """Copies of the gradient buffers, as `weights`; what ranks have to sum is summed by
        `finalize_gradients`. Raises WrongState: offloaded."""
        if self.memory.offloaded:
            raise WrongState("the gradient buffers are offloaded: restore first")
        return _copied(
            self._whole(
                {
                    name: parameter.main_grad.detach()  # type: ignore[attr-defined]
                    for name, parameter in self.parameters.items()
                }
            )
        )

    def _whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """For the cell's first rank; all have to draw it to its end, and the others get nothing."""
        place = own_coordinate()
        # These ranks hold nothing of their own but experts, where those are shared out.
        if (place.context or place.data) and own_layout().expert == 1:
            return
        for name, value in self._bridge.whole(tensors):
            if place.index == 0:
                yield name, value

    def require_held(self) -> WeightsName:
        if self.held is None:
            raise WrongVersion("no complete weights are held: load_weights or pull_weights first")
        return self.held

    def optimizer_state(self) -> OptimizerState | None:
        """None on a cell that has never updated or loaded one. Raises WrongState: offloaded."""
        if not self.memory.is_readable:
            raise WrongState("the optimizer's state is offloaded: restore first")
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
        self.drop_accumulation()
        if self.memory.offloaded:
            raise WrongState("the gradient buffers are offloaded: restore first")
        if self.require_held().version != version:
            raise WrongVersion(f"version {version} is named, {self.require_held().version} is held")
        self.model.zero_grad_buffer()
        self.open = self._accumulation(batch)

    def _accumulation(self, batch: str) -> Accumulation:
        clock = Clock(tokens_per_s=self.tokens_per_s if self._line.leads else None)
        objective = self.require_settings().objective
        stream = Stream(self.stage, self._line, objective, clock, self.device)
        failpoints = ("trainer.mid_accumulation", f"trainer_{self.cell}.mid_accumulation")
        return Accumulation(batch, stream, self._line, failpoints)

    def drop_accumulation(self) -> int:
        """Closes the batch without an update; returns how many micro-steps are lost with it."""
        batch, self.open = self.open, None
        if batch is None:
            return 0
        batch.abandon()
        return len(batch.accumulated)

    def submit(self, step: MicroStep) -> None:
        """Packs it while the one before is computed, and returns when its own turn has come. One
        whose loss is not finite counts as done, and its report says that the step must not be
        applied. Raises BadMicroStep, WrongState: nothing was added; StageLost."""
        batch = self.require_open_batch()
        batch.require_new(step)
        try:
            packed = None
            if step.num_targets:
                packed = pack_micro_step(step, self.policy, share=own_data_share())
        except ObjectiveError as error:
            raise BadMicroStep(f"micro-step {step.index}: {error}") from error
        batch.submit(Work(step=step, packed=packed))

    def flush(self) -> list[MicroStepReport]:
        """Waits until all that was submitted is in the gradient buffers of all the cell's ranks.
        Raises BadMicroStep, StageLost: the batch can only be dropped."""
        return self.require_open_batch().flush()

    def finish_accumulation(self) -> Accumulation:
        """The open batch with all its micro-steps in the buffers and its record complete; it takes
        no more. Raises BadMicroStep, StageLost, WrongState."""
        batch = self.require_open_batch()
        batch.finish(self.cell, self.pull_s)
        self.pull_s = 0.0
        return batch

    # Role changes

    def offload(self, directory: Path) -> None:
        """All of it goes, for the engine. Raises WrongState: a batch is open; NoMemory."""
        self._require_no_open_batch()
        self.memory.offload(directory)

    def _tensors(self) -> list[Tensor]:
        saved = self._saved_optimizer["parameters"] if self._saved_optimizer else {}
        optimizer = self._optimizer.tensors() if self._optimizer is not None else []
        moments = [value for values in saved.values() for value in values.values()]
        return [*self.parameters.values(), *optimizer, *moments]

    # Guards

    def require_settings(self) -> TrainerSettings:
        if self.settings is None:
            raise WrongState("no settings: configure first")
        return self.settings

    def require_open_batch(self) -> Accumulation:
        if self.open is None:
            raise WrongState("no batch is open: begin_batch first")
        return self.open

    def _communicators(self) -> list[int]:
        """What tells this process's communicators from others that it might make: Megatron's own,
        then those of the world. They outlive every role change."""
        megatron = (
            parallel_state.get_tensor_model_parallel_group(),
            parallel_state.get_pipeline_model_parallel_group(),
            parallel_state.get_data_parallel_group(),
        )
        world = self.world.communicators if self.world else ()
        return [id(group) for group in (*megatron, *world)]

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
            "offloaded": self.memory.offloaded,
            "communicators": self._communicators(),
            "num_parameters": sum(value.numel() for value in self.parameters.values()),
        }


def _copied(named: Iterable[tuple[str, Tensor]]) -> Weights:
    return {name: value.to(CPU, copy=True) for name, value in named}
