"""What a job tells its trainers, once, by `configure`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from gyre.cell_agent.trainer.errors import BadCommand
from gyre.core.objective import ObjectiveSettings
from gyre.objective import OBJECTIVES

# Share of the fall that is left at a share `done` of it; 1 at 0 and 0 at 1, exactly.
_FALLS: Mapping[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Adam. The learning rate rises linearly over `warmup_steps` updates to `lr`, then follows the
    schedule: "constant" stays; "linear" and "cosine" fall to `min_lr` over the next `decay_steps`
    updates and stay there. grad_clip: largest global gradient norm. Field for field the job file's
    `optimizer` section."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    warmup_steps: int
    grad_clip: float
    schedule: str = "constant"
    decay_steps: int | None = None
    min_lr: float = 0.0

    def lr_of_update(self, num_updates: int) -> float:
        """Learning rate of the update after `num_updates` others."""
        fallen = num_updates - self.warmup_steps
        if fallen < 0:
            return self.lr * (num_updates + 1) / self.warmup_steps
        if self.decay_steps is None:
            return self.lr
        left = _FALLS[self.schedule](min(1.0, fallen / self.decay_steps))
        # Weighted so that both ends are met exactly.
        return self.lr * left + self.min_lr * (1.0 - left)


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

    Raises BadCommand: a key is missing, no objective or schedule has that name, a fall has no
    length, or a bound is none."""
    chosen = ObjectiveSettings(**_chosen(ObjectiveSettings, "objective", objective))
    if chosen.name not in OBJECTIVES:
        raise BadCommand(
            f"configure: objective.name is {chosen.name!r}; there are {', '.join(OBJECTIVES)}"
        )
    return TrainerSettings(
        job=job,
        objective=chosen,
        optimizer=_optimizer(optimizer),
        max_mismatch=_max_mismatch(objective),
    )


def _optimizer(section: Mapping[str, Any]) -> OptimizerSettings:
    chosen = OptimizerSettings(**_chosen(OptimizerSettings, "optimizer", section))
    if chosen.schedule not in _FALLS:
        raise BadCommand(
            f"configure: optimizer.schedule is {chosen.schedule!r}; there are {', '.join(_FALLS)}"
        )
    if (chosen.schedule == "constant") != (chosen.decay_steps is None):
        raise BadCommand(
            f"configure: optimizer.schedule is {chosen.schedule!r} and decay_steps is "
            f"{chosen.decay_steps}; linear and cosine have a length, constant has none"
        )
    return chosen


def _max_mismatch(objective: Mapping[str, Any]) -> float | None:
    value = objective.get("max_mismatch")
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise BadCommand(f"configure: objective.max_mismatch is {value!r}, no positive number")
    return value


def _chosen(kind: type, section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    missing = [
        field.name
        for field in fields(kind)
        if field.name not in values and field.default is MISSING
    ]
    if missing:
        raise BadCommand(f"configure: {section} lacks {', '.join(missing)}")
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}
