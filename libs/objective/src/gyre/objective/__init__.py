"""Equations (5) and (6) on tensors."""

from __future__ import annotations

from gyre.objective.losses import OBJECTIVES, execution_ratios, mismatches, objective_loss
from gyre.objective.policy import TokenPolicy, token_policy
from gyre.objective.types import (
    Mismatch,
    NonFiniteLoss,
    ObjectiveError,
    ObjectiveResult,
    Targets,
    UnknownObjective,
)

__all__ = [
    "OBJECTIVES",
    "Mismatch",
    "NonFiniteLoss",
    "ObjectiveError",
    "ObjectiveResult",
    "Targets",
    "TokenPolicy",
    "UnknownObjective",
    "execution_ratios",
    "mismatches",
    "objective_loss",
    "token_policy",
]
