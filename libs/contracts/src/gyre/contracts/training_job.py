"""How a job's cells train: the layout of a cell's ranks, precision, optimizer, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gyre.contracts.section import Positive, PositiveFloat, Section


class LayoutSection(Section):
    """The ranks of one cell; all cells of a job share it. tensor, pipeline, context, data: sizes of
    Megatron's parallel groups, whose product is the cell's ranks. sequence_parallel: activations
    between the tensor-parallel blocks are split over the tensor group too.

    expert: of Megatron's expert group. It makes no ranks of its own: those of a pipeline stage, so
    many neighbours at a time, share out the experts of a mixture. Above 1 an expert lies whole on
    its rank (an expert tensor size of 1), for experts are many and small; at 1 every tensor group
    has them all, cut over its ranks as the rest of the layer."""

    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    data: Positive = 1
    expert: Positive = 1
    sequence_parallel: bool = False

    @property
    def num_ranks(self) -> int:
        """Of one cell."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_tensor(self) -> int:
        """Ranks that an expert is cut over."""
        return self.tensor if self.expert == 1 else 1

    @model_validator(mode="after")
    def _sequence_needs_tensor(self) -> LayoutSection:
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError(
                "sequence_parallel: there is no tensor group to split over; set tensor > 1"
            )
        return self

    @model_validator(mode="after")
    def _experts_lie_within_a_stage(self) -> LayoutSection:
        in_stage = self.num_ranks // self.pipeline
        if in_stage % self.expert:
            raise ValueError(
                f"expert: {self.expert} does not divide the {in_stage} ranks of a pipeline stage, "
                "tensor * context * data; choose a size that does"
            )
        return self


class CheckpointSection(Section):
    """keep: newest checkpoints that stay on disk, and the one that serves. asynchronous: written
    beside the trainer's other commands; durable before engines are told of it either way."""

    keep: Positive = 2
    asynchronous: bool = False


class TrainingSection(Section):
    """precision: of parameters and activations; gradients are summed and applied in float32 either
    way. recompute: "full" keeps a layer's input alone and computes the layer again going back."""

    layout: LayoutSection = LayoutSection()
    precision: Literal["float32", "bfloat16"] = "float32"
    recompute: Literal["none", "full"] = "none"
    checkpoint: CheckpointSection = CheckpointSection()


class OptimizerSection(Section):
    """Adam. The learning rate rises linearly over `warmup_steps`, then follows the schedule: stays,
    or falls to `min_lr` over the next `decay_steps`, in a line or along half a cosine."""

    lr: Annotated[float, Field(ge=0)] = 1e-6
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    grad_clip: PositiveFloat = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: Positive | None = None
    min_lr: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _a_fall_has_a_length(self) -> OptimizerSection:
        if (self.schedule == "constant") != (self.decay_steps is None):
            raise ValueError(
                "schedule, decay_steps: linear and cosine need decay_steps, constant has none"
            )
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr: {self.min_lr} is above lr, {self.lr}")
        return self
