"""What a job tells its trainers, once, by `configure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gyre.cell_agent.trainer.errors import BadCommand
from gyre.core.objective import ObjectiveSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Adam. The learning rate rises linearly over `warmup_steps` updates, then stays. grad_clip:
    largest global gradient norm. Field for field the job file's `optimizer` section."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    warmup_steps: int
    grad_clip: float

    def lr_of_update(self, num_updates: int) -> float:
        """Learning rate of the update after `num_updates` others."""
        if num_updates >= self.warmup_steps:
            return self.lr
        return self.lr * (num_updates + 1) / self.warmup_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    job: str
    objective: ObjectiveSettings
    optimizer: OptimizerSettings


def parse_settings(
    job: str, objective: Mapping[str, Any], optimizer: Mapping[str, Any]
) -> TrainerSettings:
    """From the job file's sections as JSON; keys that concern others (advantage) are ignored."""
    return TrainerSettings(
        job=job,
        objective=ObjectiveSettings(**_chosen(ObjectiveSettings, "objective", objective)),
        optimizer=OptimizerSettings(**_chosen(OptimizerSettings, "optimizer", optimizer)),
    )


def _chosen(kind: type, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in values]
    if missing:
        raise BadCommand(f"configure: {section} lacks {', '.join(missing)}")
    return {name: values[name] for name in names}
