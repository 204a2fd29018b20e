"""What a job tells its trainers, once, by `configure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gyre.cell_agent.trainer.errors import BadCommand
from gyre.core.objective import ObjectiveSettings
from gyre.objective import OBJECTIVES


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
    """max_mismatch: bound on the mean |log pi - behaviour logprob| of a version's targets, nats;
    a batch beyond it is not applied. None: no bound."""

    job: str
    objective: ObjectiveSettings
    optimizer: OptimizerSettings
    max_mismatch: float | None


def parse_settings(
    job: str, objective: Mapping[str, Any], optimizer: Mapping[str, Any]
) -> TrainerSettings:
    """From the job file's sections as JSON; keys that concern others (advantage) are ignored.

    Raises BadCommand: a key is missing, no objective has that name, or a bound is none."""
    chosen = ObjectiveSettings(**_chosen(ObjectiveSettings, "objective", objective))
    if chosen.name not in OBJECTIVES:
        raise BadCommand(
            f"configure: objective.name is {chosen.name!r}; there are {', '.join(OBJECTIVES)}"
        )
    return TrainerSettings(
        job=job,
        objective=chosen,
        optimizer=OptimizerSettings(**_chosen(OptimizerSettings, "optimizer", optimizer)),
        max_mismatch=_max_mismatch(objective),
    )


def _max_mismatch(objective: Mapping[str, Any]) -> float | None:
    value = objective.get("max_mismatch")
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise BadCommand(f"configure: objective.max_mismatch is {value!r}, no positive number")
    return value


def _chosen(kind: type, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in values]
    if missing:
        raise BadCommand(f"configure: {section} lacks {', '.join(missing)}")
    return {name: values[name] for name in names}
