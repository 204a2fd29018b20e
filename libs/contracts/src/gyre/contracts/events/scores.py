"""What the evaluator says, on facts.<job>.exec.<execution>.score. Exactly one of evaluated,
execution_excluded and placeholder_scored ends an execution's evaluation."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from gyre.contracts.envelope import Body
from gyre.contracts.registry import event


@event
class Evaluated(Body):
    """A valid score, zero included. artifact: digest of the scored workspace state."""

    TYPE: ClassVar[str] = "evaluated"
    execution: str
    attempt: int
    evaluation: str
    artifact: str
    branch: str
    reward: float
    detail: dict[str, Any] = Field(default_factory=dict)


@event
class EvaluationFailed(Body):
    """The evaluator failed, not the work: still pending, tried again on the same artifact."""

    TYPE: ClassVar[str] = "evaluation_failed"
    execution: str
    attempt: int
    evaluation: str
    artifact: str
    num_tries: int
    error: str


@event
class ExecutionExcluded(Body):
    """No valid reward within the budget: out of training and out of the baseline."""

    TYPE: ClassVar[str] = "execution_excluded"
    execution: str
    reason: str


@event
class PlaceholderScored(Body):
    """Nothing to evaluate after an infrastructure failure: reward 0, no targets (L_i = 0); in the
    baseline, but not a valid reward when a group counts its valid ones."""

    TYPE: ClassVar[str] = "placeholder_scored"
    execution: str
    reason: str
