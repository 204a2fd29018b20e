"""The micro-step: the unit of training work that one cell claims. Whole executions only.

The trajectory service produces it, a trainer consumes it. s_i and m_i of eq. (5) need every target
of an execution before the first backward, so an execution's blocks never span two micro-steps, and
any trainer can work on a micro-step alone.

An execution's admitted paths come as trees: each shared prefix once, depth-first. Two paths
[5, 6, 7] and [5, 6, 8, 9] are one block of tokens 5 6 7 8 9 and edges (5 6), (7), (8 9), the last
two below the first. A single path is a block of one edge.

Invariants, checked at construction:
- every target of an execution is here: the targets of its blocks add up to its `num_targets`;
- a target has a predecessor on its root path, whose logits predict it;
- a block's edges cover its tokens without a gap, depth-first, parents first;
- a row holds at most `row_tokens` tokens.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

MicroStepProblem = str

# `Edge.parent` of a root's edge.
NO_EDGE = -1


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
class Edge:
    """A run of tokens with no branch inside: start..stop of the block's token_ids, stop > start.

    parent: index of the edge above among the block's edges, less than its own; NO_EDGE at a root.
    """

    start: int
    stop: int
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBlock:
    """All or a part of one execution's admitted paths, each shared prefix once.

    execution: index into the micro-step's executions. token_ids: flat, depth-first.
    target_positions: ascending indices into token_ids. behaviour_logprobs (natural log) and
    versions (policy version that sampled the token; empty when not known) are aligned with it.
    num_repeated_tokens: where a tree was too large for a row, the first tokens of the block that
    another block of the execution carries too; context here, without targets.
    """

    execution: int
    token_ids: tuple[int, ...]
    edges: tuple[Edge, ...]
    target_positions: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    versions: tuple[int, ...] = ()
    num_repeated_tokens: int = 0

    @property
    def depths(self) -> tuple[int, ...]:
        """By edge: the position on its root path of its first token."""
        depths: list[int] = []
        for edge in self.edges:
            if edge.parent == NO_EDGE:
                depths.append(0)
            else:
                above = self.edges[edge.parent]
                depths.append(depths[edge.parent] + above.stop - above.start)
        return tuple(depths)

    @property
    def leaves(self) -> tuple[int, ...]:
        """Indices of the edges that nothing hangs below: one for each path."""
        inner = {edge.parent for edge in self.edges}
        return tuple(number for number in range(len(self.edges)) if number not in inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Blocks packed behind one another; attention never crosses from one to the next."""

    blocks: tuple[TreeBlock, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(block.token_ids) for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """batch, index: its name. row_tokens: S, a row's capacity. window_rows: rows that a trainer has
    to hold in one forward unit; where there are more, s_i and m_i come from a forward-only pass.
    normalizer: B*N of eq. (6), raw executions of the whole batch, the same in each of the batch's
    micro-steps."""

    batch: str
    index: int
    row_tokens: int
    window_rows: int
    normalizer: int
    executions: tuple[ExecutionInfo, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        problem = _first_problem(self)
        if problem is not None:
            raise MicroStepError(f"micro-step {self.index} of batch {self.batch}: {problem}")

    @property
    def blocks(self) -> tuple[TreeBlock, ...]:
        return tuple(block for row in self.rows for block in row.blocks)

    @property
    def num_tokens(self) -> int:
        """Tokens that the rows carry: each execution's unique ones, and what splits repeat."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_repeated_tokens(self) -> int:
        """Those of `num_tokens` that are in a row only because a tree was split."""
        return sum(block.num_repeated_tokens for block in self.blocks)

    @property
    def num_paths(self) -> int:
        return sum(len(block.leaves) for block in self.blocks)

    @property
    def num_path_tokens(self) -> int:
        """What the rows would carry with every path laid flat, prefixes as often as they occur."""
        return sum(map(_flat_tokens, self.blocks))

    @property
    def num_targets(self) -> int:
        return sum(info.num_targets for info in self.executions)


def _flat_tokens(block: TreeBlock) -> int:
    depths = block.depths
    ends = ((depths[leaf], block.edges[leaf]) for leaf in block.leaves)
    return sum(depth + edge.stop - edge.start for depth, edge in ends)


def _first_problem(step: MicroStep) -> MicroStepProblem | None:
    if step.normalizer < 1:
        return f"normalizer is {step.normalizer}, it must be B*N >= 1"
    if step.window_rows < 1:
        return f"window_rows is {step.window_rows}, a trainer holds at least one row"
    counts = [0] * len(step.executions)
    for number, row in enumerate(step.rows):
        if row.num_tokens > step.row_tokens:
            return f"row {number} has {row.num_tokens} tokens, row_tokens is {step.row_tokens}"
        for block in row.blocks:
            if not 0 <= block.execution < len(counts):
                return f"row {number} names execution {block.execution}, which is not listed"
            problem = _edge_problem(block) or _target_problem(block)
            if problem is not None:
                return f"row {number}: {problem}"
            counts[block.execution] += len(block.target_positions)
    for info, count in zip(step.executions, counts, strict=True):
        if count != info.num_targets:
            return f"execution {info.execution} has {count} of its {info.num_targets} targets here"
        if not (info.temperature > 0 and math.isfinite(info.temperature)):
            return f"execution {info.execution} has temperature {info.temperature}"
        if not math.isfinite(info.advantage):
            return f"execution {info.execution} has advantage {info.advantage}"
    return None


def _edge_problem(block: TreeBlock) -> MicroStepProblem | None:
    """Depth-first means that an edge hangs below the one before it or below one above that."""
    end, open_path = 0, [NO_EDGE]
    for number, edge in enumerate(block.edges):
        if edge.start != end or edge.stop <= edge.start:
            return f"edge {number} is {edge.start}..{edge.stop}, the one before it ends at {end}"
        while open_path and open_path[-1] != edge.parent:
            open_path.pop()
        if not open_path:
            return f"edge {number} below edge {edge.parent} is out of depth-first order"
        open_path.append(number)
        end = edge.stop
    if end != len(block.token_ids):
        return f"edges cover {end} of a block's {len(block.token_ids)} tokens"
    return None


def _target_problem(block: TreeBlock) -> MicroStepProblem | None:
    positions = block.target_positions
    if len(block.behaviour_logprobs) != len(positions):
        return f"{len(positions)} targets but {len(block.behaviour_logprobs)} behaviour logprobs"
    if block.versions and len(block.versions) != len(positions):
        return f"{len(positions)} targets but {len(block.versions)} versions"
    if any(later <= earlier for earlier, later in itertools.pairwise(positions)):
        return "target positions do not ascend"
    if not 0 <= block.num_repeated_tokens <= len(block.token_ids):
        return f"{block.num_repeated_tokens} of {len(block.token_ids)} tokens are called repeated"
    if not positions:
        return None
    if positions[0] < 0 or positions[-1] >= len(block.token_ids):
        return f"a target position lies outside 0..{len(block.token_ids) - 1}"
    roots = {edge.start for edge in block.edges if edge.parent == NO_EDGE}
    if not roots.isdisjoint(positions):
        return "a target opens a root, so nothing predicts it"
    if positions[0] < block.num_repeated_tokens:
        return "a target lies in the repeated part of a split tree"
    return None
