"""From an execution's tree to what is trained of it: admitted trajectories with their targets.

A trajectory is a root-to-leaf path of exact token ids; its targets are the tokens that the policy
sampled, in the attempt that was scored, in a call that was committed and delivered, with role other
than `other`, and that no earlier trajectory carries. Everything else is context. A path ends with
its leaf's targets: what follows them predicts nothing that is trained.

Trajectories come as blocks (`gyre.core.blocks`), in which each shared prefix is there once.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Literal

from gyre.contracts.events.calls import RequestRole
from gyre.contracts.job import JobSpec
from gyre.core.admission import CLASS_ORDER, Admitted, Candidates, Leaf, admit, seeded
from gyre.core.blocks import BlockPlan, plan_trees
from gyre.core.harness import harness_profile
from gyre.core.microstep import Edge, TreeBlock
from gyre.core.tree import Tree
from gyre.core.tree_nodes import Node, Sampled

# Each is explained in `gyre.core.tree_verdicts`.
NoTarget = Literal[
    "context",
    "undelivered",
    "aborted",
    "superseded",
    "failed",
    "other_role",
    "other_attempt",
    "empty",
]


class SampleError(Exception):
    """An execution's records cannot be trained: they lack something that every target needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A `TreeBlock` to be, compact. token_ids: int32, depth-first. target_positions: ascending
    indices into it. logprobs (float64, natural log) and versions are aligned with the targets;
    versions is empty when a call's spans do not cover its tokens."""

    token_ids: array[int]
    edges: tuple[Edge, ...]
    target_positions: array[int]
    logprobs: array[float]
    versions: array[int]
    num_repeated_tokens: int

    def of_execution(self, number: int) -> TreeBlock:
        """As a micro-step has it, in which the execution has this number."""
        return TreeBlock(
            execution=number,
            token_ids=tuple(self.token_ids),
            edges=self.edges,
            target_positions=tuple(self.target_positions),
            behaviour_logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            num_repeated_tokens=self.num_repeated_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSamples:
    """num_targets: L_i. num_paths: trajectories admitted. num_paths_too_long: leaves dropped before
    admission. temperature: of the calls; 1.0 when there is no target."""

    blocks: tuple[Block, ...]
    num_targets: int
    num_paths: int
    num_paths_too_long: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What admission was given and what it chose. nodes: the tree's, parents first; all else names
    them by index. row_tokens: longest path, and largest block. too_long: ends of paths that were
    dropped before."""

    nodes: Sequence[Node]
    row_tokens: int
    candidates: Candidates
    too_long: tuple[int, ...]
    admitted: tuple[Admitted, ...]


def chosen_of(tree: Tree, execution: str, attempt: int, spec: JobSpec) -> Choice:
    """What is trained of the execution's scored attempt as its job says: by its settings and its
    harness, drawn by a random source of the execution's own."""
    return choose(
        tree,
        attempt=attempt,
        row_tokens=spec.admission.row_tokens,
        max_trajectories=spec.admission.max_trajectories,
        rng=seeded(spec.seed, execution),
        class_order=harness_profile(spec.harness.profile).class_order,
    )


def samples_of(choice: Choice) -> ExecutionSamples:
    """What was chosen, as blocks. Raises SampleError for targets without context, with a logprob
    that is no number, or with more than one temperature."""
    nodes, admitted = choice.nodes, choice.admitted
    targets = frozenset(place for one in admitted for place in one.fresh)
    temperature = _checked_temperature([nodes[place] for place in sorted(targets)])
    paths, sizes = [one.path for one in admitted], [len(node.token_ids) for node in nodes]
    plans = plan_trees(paths, sizes, choice.row_tokens)
    return ExecutionSamples(
        blocks=tuple(_block(plan, nodes, targets) for plan in plans),
        num_targets=sum(sizes[place] for place in targets),
        num_paths=len(admitted),
        num_paths_too_long=len(choice.too_long),
        temperature=temperature,
    )


def choose(
    tree: Tree,
    *,
    attempt: int,
    row_tokens: int,
    max_trajectories: int | None,
    rng: random.Random,
    class_order: Sequence[RequestRole] = CLASS_ORDER,
) -> Choice:
    """The paths that are trained of `tree` and the targets each carries; mutates `rng` only.

    max_trajectories: J_max, None for no cap. row_tokens: longest trainable path; a longer one is
    dropped before admission, never cut. class_order: the harness profile's.
    """
    nodes = list(tree.nodes.values())
    index = {node.id: place for place, node in enumerate(nodes)}
    parents = [None if node.parent is None else index[node.parent] for node in nodes]
    targets = [
        len(node.token_ids) if no_target(node, attempt, class_order) is None else 0
        for node in nodes
    ]
    ends = _ends(parents, targets)
    candidates = Candidates(
        parents=parents,
        targets=targets,
        leaves=[
            Leaf(node=place, role=_role(nodes[place]))
            for place in ends
            if nodes[place].num_path_tokens <= row_tokens
        ],
    )
    return Choice(
        nodes=nodes,
        row_tokens=row_tokens,
        candidates=candidates,
        too_long=tuple(place for place in ends if nodes[place].num_path_tokens > row_tokens),
        admitted=admit(
            candidates, max_trajectories=max_trajectories, rng=rng, class_order=class_order
        ),
    )


def no_target(node: Node, attempt: int, class_order: Collection[RequestRole]) -> NoTarget | None:
    """Why its tokens are no targets whatever is drawn; None when they are."""
    sampled = node.sampled
    if sampled is None:
        return "context"
    if sampled.status != "committed":
        return sampled.status
    if sampled.request_role not in class_order:
        return "other_role"
    if sampled.attempt != attempt:
        return "other_attempt"
    return None if len(node.token_ids) else "empty"


def _ends(parents: Sequence[int | None], targets: Sequence[int]) -> list[int]:
    """Nodes with targets and none below them: leaves of the tree cut back to what is trainable.

    An aborted call or a title request below the last turn would otherwise hide that turn.
    """
    above = bytearray(len(parents))
    for place in range(len(parents) - 1, -1, -1):
        parent = parents[place]
        if parent is not None and (targets[place] or above[place]):
            above[parent] = True
    return [place for place, count in enumerate(targets) if count and not above[place]]


def _role(node: Node) -> str:
    assert node.sampled is not None
    return node.sampled.request_role


def _block(plan: BlockPlan, nodes: Sequence[Node], targets: Container[int]) -> Block:
    tokens, positions = array("i"), array("i")
    logprobs, versions = array("d"), array("i")
    num_repeated_tokens = 0
    versioned = True
    for number, place in enumerate(plan.places):
        node = nodes[place]
        if number == plan.num_repeated:
            num_repeated_tokens = len(tokens)
        if number >= plan.num_repeated and place in targets and node.sampled is not None:
            positions.extend(range(len(tokens), len(tokens) + len(node.token_ids)))
            logprobs.extend(node.sampled.logprobs)
            sampled_by = _versions(node.sampled, len(node.token_ids))
            versioned = versioned and sampled_by is not None
            versions.extend(sampled_by or ())
        tokens.extend(node.token_ids)
    return Block(
        token_ids=tokens,
        edges=plan.edges,
        target_positions=positions,
        logprobs=logprobs,
        versions=versions if versioned else array("i"),
        num_repeated_tokens=num_repeated_tokens,
    )


def _versions(sampled: Sampled, num_tokens: int) -> array[int] | None:
    """The policy version of each token, None when the spans do not cover 0..num_tokens in order.
    Raises SampleError for a version that is no int32."""
    versions = array("i")
    for span in sampled.spans:
        if span.start != len(versions) or not span.start <= span.end <= num_tokens:
            return None
        try:
            versions.extend(array("i", [span.version]) * (span.end - span.start))
        except OverflowError:
            raise SampleError(f"call {sampled.call}: {span.version} is no policy version") from None
    return versions if len(versions) == num_tokens else None


def _checked_temperature(targets: Sequence[Node]) -> float:
    """The one temperature of `targets`, in the order of their calls."""
    found: dict[float, str] = {}
    for node in targets:
        sampled = node.sampled
        assert sampled is not None
        if node.num_context_tokens == 0:
            raise SampleError(f"call {sampled.call}: its first token was sampled from no context")
        if not all(map(math.isfinite, sampled.logprobs)):
            raise SampleError(f"call {sampled.call}: a behaviour logprob is not finite")
        if not 0 < sampled.temperature < math.inf:
            raise SampleError(f"call {sampled.call}: {sampled.temperature} is no temperature")
        found.setdefault(sampled.temperature, sampled.call)
    if len(found) > 1:
        each = "; ".join(f"{value}: call {call}" for value, call in sorted(found.items()))
        raise SampleError(f"sampled at temperature {each}")
    return next(iter(found), 1.0)
