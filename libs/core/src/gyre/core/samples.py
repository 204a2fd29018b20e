"""From an execution's tree to what is trained of it: admitted trajectories with their targets.

A sample is a root-to-leaf path of exact token ids; its targets are the tokens that the policy
sampled, in the attempt that was scored, in a call that was committed and delivered, with role
other than `other`, and that no earlier sample carries. Everything else is context.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gyre.contracts.events.calls import Span
from gyre.core.admission import CLASS_ORDER, Admitted, Candidates, Leaf, admit
from gyre.core.tree import Tree
from gyre.core.tree_nodes import Node


class SampleError(Exception):
    """An execution's records cannot be trained: they lack something that every target needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory. token_ids: the whole path, int32. target_positions: ascending indices into
    it. logprobs (float64, natural log) and versions are aligned with the targets; versions is empty
    when a call's spans do not cover its tokens."""

    token_ids: array[int]
    target_positions: array[int]
    logprobs: array[float]
    versions: array[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSamples:
    """num_targets: L_i. num_paths_too_long: leaves dropped before admission. temperature: of the
    calls; 1.0 when there is no target."""

    samples: tuple[Sample, ...]
    num_targets: int
    num_paths_too_long: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The tree by index, parents first. nodes[i] belongs to candidates.parents[i]."""

    nodes: Sequence[Node]
    candidates: Candidates
    num_paths_too_long: int


def draw_samples(
    tree: Tree, *, attempt: int, row_tokens: int, max_trajectories: int, rng: random.Random
) -> ExecutionSamples:
    """Admission on `tree`; mutates `rng` only.

    row_tokens: longest trainable path; longer ones are dropped before admission, never cut.
    Raises SampleError for targets without context, with a logprob that is no number, or with more
    than one temperature.
    """
    view = _view(tree, attempt, row_tokens)
    admitted = admit(view.candidates, max_trajectories=max_trajectories, rng=rng)
    samples = tuple(_sample(view.nodes, one) for one in admitted)
    return ExecutionSamples(
        samples=samples,
        num_targets=sum(len(sample.target_positions) for sample in samples),
        num_paths_too_long=view.num_paths_too_long,
        temperature=_temperature([view.nodes[i] for one in admitted for i in one.fresh]),
    )


def _view(tree: Tree, attempt: int, row_tokens: int) -> _View:
    nodes = list(tree.nodes.values())
    index = {node.id: place for place, node in enumerate(nodes)}
    parents = [None if node.parent is None else index[node.parent] for node in nodes]
    targets = [len(node.token_ids) if _trainable(node, attempt) else 0 for node in nodes]
    ends = _ends(parents, targets)
    fitting = [place for place in ends if nodes[place].num_path_tokens <= row_tokens]
    return _View(
        nodes=nodes,
        candidates=Candidates(
            parents=parents,
            targets=targets,
            leaves=[Leaf(node=place, role=_role(nodes[place])) for place in fitting],
        ),
        num_paths_too_long=len(ends) - len(fitting),
    )


def _trainable(node: Node, attempt: int) -> bool:
    sampled = node.sampled
    return (
        node.is_target
        and sampled is not None
        and sampled.attempt == attempt
        and sampled.request_role in CLASS_ORDER
    )


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


def _sample(nodes: Sequence[Node], admitted: Admitted) -> Sample:
    tokens, positions = array("i"), array("i")
    logprobs, versions = array("d"), array("i")
    fresh = set(admitted.fresh)
    versioned = True
    for place in admitted.path:
        node = nodes[place]
        if place in fresh and node.sampled is not None:
            _check(node)
            positions.extend(range(len(tokens), len(tokens) + len(node.token_ids)))
            logprobs.extend(node.sampled.logprobs)
            sampled_by = _versions(node.sampled.spans, len(node.token_ids))
            versioned = versioned and sampled_by is not None
            versions.extend(sampled_by or ())
        tokens.extend(node.token_ids)
    return Sample(
        token_ids=tokens,
        target_positions=positions,
        logprobs=logprobs,
        versions=versions if versioned else array("i"),
    )


def _check(node: Node) -> None:
    sampled = node.sampled
    assert sampled is not None
    if node.num_context_tokens == 0:
        raise SampleError(f"call {sampled.call}: its first token was sampled from no context")
    if not all(map(math.isfinite, sampled.logprobs)):
        raise SampleError(f"call {sampled.call}: a behaviour logprob is not finite")


def _versions(spans: Sequence[Span], num_tokens: int) -> array[int] | None:
    """The policy version of each token, None when the spans do not cover 0..num_tokens in order."""
    versions = array("i")
    for span in spans:
        if span.start != len(versions) or span.end < span.start:
            return None
        versions.extend([span.version] * (span.end - span.start))
    return versions if len(versions) == num_tokens else None


def _temperature(targets: Sequence[Node]) -> float:
    found = {node.sampled.temperature for node in targets if node.sampled is not None}
    if len(found) > 1:
        raise SampleError(f"its calls were sampled at temperatures {sorted(found)}")
    return found.pop() if found else 1.0
