"""Errors of the evaluator; the message of each is one line for a person."""

from __future__ import annotations


class EvaluatorError(Exception):
    """Root of this package's errors."""


class ArtifactTooLarge(EvaluatorError):
    """The workspace is over a limit and cannot be preserved: no retry mends that."""


class ScorerFailed(EvaluatorError):
    """The scorer, or what it needs, broke. Says nothing about the work: the try may be repeated."""
