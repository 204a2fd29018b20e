"""Equations (5) and (6) on tensors."""

from __future__ import annotations

from gyre.objective.losses import OBJECTIVES, log_ratio_sums, objective_loss, ratios_of
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
    "log_ratio_sums",
    "mismatches",
    "objective_loss",
    "ratios_of",
    "token_policy",
]
