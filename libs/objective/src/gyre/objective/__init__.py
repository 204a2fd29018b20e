"""Equations (5) and (6) on tensors."""

from __future__ import annotations

from gyre.objective.losses import OBJECTIVES, objective_loss
from gyre.objective.mismatch import mismatches
from gyre.objective.policy import TokenPolicy, token_policy
from gyre.objective.types import (
    NonFiniteLoss,
    ObjectiveError,
    ObjectiveResult,
    Targets,
    UnknownObjective,
)

__all__ = [
    "OBJECTIVES",
    "NonFiniteLoss",
    "ObjectiveError",
    "ObjectiveResult",
    "Targets",
    "TokenPolicy",
    "UnknownObjective",
    "mismatches",
    "objective_loss",
    "token_policy",
]
