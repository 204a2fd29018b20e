"""The micro-step: the unit of training work that one cell claims. Whole executions only.

The trajectory service produces it, a trainer consumes it. s_i and m_i of eq. (5) need every target
of an execution before the first backward, so an execution's segments never span two micro-steps;
a micro-step therefore is one forward unit, and any trainer can work on it alone.

Invariants, checked at construction:
- every target of an execution is here: the targets of its segments add up to its `num_targets`;
- a target has a predecessor (position > 0): the logits at position t-1 predict token t;
- a row holds at most `row_tokens` tokens.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

MicroStepProblem = str


class MicroStepError(ValueError):
    """A micro-step breaks one of its invariants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInfo:
    """What the objective needs to know of one execution.

    advantage: group-relative, one for all its targets. num_targets: L_i, 0 for a placeholder.
    temperature: the recorded sampling temperature, by which the trainer divides logits.
    """

    execution: str
    group: str
    advantage: float
    num_targets: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One trajectory: a root-to-leaf path and the targets frozen when it was drawn.

    execution: index into the micro-step's executions. target_positions: ascending indices into
    `token_ids`. behaviour_logprobs (natural log) and versions (policy version that sampled the
    token; empty when not known) are aligned with target_positions.
    """

    execution: int
    token_ids: tuple[int, ...]
    target_positions: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Segments packed behind one another; attention never crosses from one to the next."""

    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """batch, index: its name. row_tokens: S, a row's capacity. normalizer: B*N of eq. (6), raw
    executions of the whole batch, the same in each of the batch's micro-steps."""

    batch: str
    index: int
    row_tokens: int
    normalizer: int
    executions: tuple[ExecutionInfo, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        problem = _first_problem(self)
        if problem is not None:
            raise MicroStepError(f"micro-step {self.index} of batch {self.batch}: {problem}")

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for row in self.rows for segment in row.segments)

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_targets(self) -> int:
        return sum(info.num_targets for info in self.executions)


def _first_problem(step: MicroStep) -> MicroStepProblem | None:
    if step.normalizer < 1:
        return f"normalizer is {step.normalizer}, it must be B*N >= 1"
    counts = [0] * len(step.executions)
    for number, row in enumerate(step.rows):
        if row.num_tokens > step.row_tokens:
            return f"row {number} has {row.num_tokens} tokens, row_tokens is {step.row_tokens}"
        for segment in row.segments:
            if not 0 <= segment.execution < len(counts):
                return f"row {number} names execution {segment.execution}, which is not listed"
            problem = _segment_problem(segment)
            if problem is not None:
                return f"row {number}: {problem}"
            counts[segment.execution] += len(segment.target_positions)
    for info, count in zip(step.executions, counts, strict=True):
        if count != info.num_targets:
            return f"execution {info.execution} has {count} of its {info.num_targets} targets here"
        if not (info.temperature > 0 and math.isfinite(info.temperature)):
            return f"execution {info.execution} has temperature {info.temperature}"
        if not math.isfinite(info.advantage):
            return f"execution {info.execution} has advantage {info.advantage}"
    return None


def _segment_problem(segment: Segment) -> MicroStepProblem | None:
    positions = segment.target_positions
    if len(segment.behaviour_logprobs) != len(positions):
        return f"{len(positions)} targets but {len(segment.behaviour_logprobs)} behaviour logprobs"
    if segment.versions and len(segment.versions) != len(positions):
        return f"{len(positions)} targets but {len(segment.versions)} versions"
    if any(later <= earlier for earlier, later in itertools.pairwise(positions)):
        return "target positions do not ascend"
    if positions and not (positions[0] > 0 and positions[-1] < len(segment.token_ids)):
        return f"a target position lies outside 1..{len(segment.token_ids) - 1}"
    return None
