"""What became of each token of an execution: its tree, admission's choice and the job's facts.

Pure: facts and the tree in, one report out. The draw is the trajectory service's own
(`chosen_of`), so what is said of an execution that nobody has drawn yet is what will be drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gyre.contracts.events.calls import RequestRole
from gyre.contracts.job import JobSpec
from gyre.core.causes import Cause, causes
from gyre.core.execution_fate import Fate
from gyre.core.harness import harness_profile
from gyre.core.samples import Choice, SampleError, chosen_of, samples_of
from gyre.core.tree import Tree
from gyre.core.tree_counts import TreeCounts, tree_counts
from gyre.core.tree_nodes import CallStatus, Node
from gyre.core.tree_verdicts import Verdict, carriers_of, verdicts_of

LeftOut = Literal["too_long", "not_drawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """path: number of the drawn path that carries its targets. cause: of a sampled node that does
    not go on where its agent was."""

    node: Node
    verdict: Verdict
    path: int | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathView:
    """A drawn trajectory. number: from 1, in the order drawn. leaf: a sampled node; the path goes
    from its root to there. num_targets: tokens it carries; num_masked: targets on it that an
    earlier path carries, context here."""

    number: int
    leaf: str
    request_role: str
    num_nodes: int
    num_tokens: int
    num_targets: int
    num_masked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafView:
    """An end of a path that was not drawn and still has targets. num_unmasked: these."""

    leaf: str
    request_role: str
    num_tokens: int
    num_unmasked: int
    reason: LeftOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """counts: what sharing prefixes saves. calls: by status. sampled_tokens: by verdict.
    num_carried_tokens: what the admitted paths are in a micro-step, shared prefixes once;
    num_path_tokens: the same paths laid flat."""

    counts: TreeCounts
    num_nodes: int
    num_input_nodes: int
    num_roots: int
    calls: Counter[CallStatus]
    sampled_tokens: Counter[Verdict]
    num_carried_tokens: int
    num_path_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """fate: what the job's facts say. damaged: why the records cannot be trained; the tree is what
    came before. attempt: the one that admission looked at, None where nothing is admitted."""

    tree: Tree
    fate: Fate
    damaged: str | None
    attempt: int | None
    nodes: Mapping[str, NodeView]
    paths: tuple[PathView, ...]
    left_out: tuple[LeafView, ...]
    totals: Totals


def tree_report(tree: Tree, fate: Fate, spec: JobSpec, *, damaged: str | None) -> TreeReport:
    """damaged: what is wrong with the record behind the tree's last one, if anything is."""
    attempt = fate.attempt or _last_attempt(tree)
    out = damaged or fate.out
    choice: Choice | None = None
    num_carried = 0
    if out is None:
        try:
            chosen = chosen_of(tree, fate.execution, attempt, spec)
            num_carried = sum(len(block.token_ids) for block in samples_of(chosen).blocks)
            choice = chosen
        except SampleError as error:
            damaged = str(error)
    verdicts = verdicts_of(tree, attempt, choice, _class_order(spec))
    paths = () if choice is None else _paths(choice)
    found = causes(tree)
    carriers = carriers_of(choice)
    nodes = {
        node.id: NodeView(
            node=node,
            verdict=verdicts[node.id],
            path=carriers.get(node.id),
            cause=found.get(node.id),
        )
        for node in tree.nodes.values()
    }
    return TreeReport(
        tree=tree,
        fate=fate,
        damaged=damaged,
        attempt=None if choice is None else attempt,
        nodes=nodes,
        paths=paths,
        left_out=() if choice is None else tuple(_left_out(choice)),
        totals=_totals(tree, nodes, num_carried, sum(path.num_tokens for path in paths)),
    )


def _last_attempt(tree: Tree) -> int:
    return max((node.sampled.attempt for node in tree.sampled() if node.sampled), default=1)


def _paths(choice: Choice) -> tuple[PathView, ...]:
    sizes = choice.candidates.targets
    views = []
    for number, one in enumerate(choice.admitted, start=1):
        targets = sum(sizes[place] for place in one.fresh)
        leaf = choice.nodes[one.leaf.node]
        views.append(
            PathView(
                number=number,
                leaf=leaf.id,
                request_role=one.leaf.role,
                num_nodes=len(one.path),
                num_tokens=leaf.num_path_tokens,
                num_targets=targets,
                num_masked=sum(sizes[place] for place in one.path) - targets,
            )
        )
    return tuple(views)


def _left_out(choice: Choice) -> list[LeafView]:
    """Ends of paths that no trajectory reaches, those that were dropped first."""
    drawn = {one.leaf.node for one in choice.admitted}
    fitting = [leaf.node for leaf in choice.candidates.leaves if leaf.node not in drawn]
    unmasked = _unmasked(choice)

    def views(places: Iterable[int], reason: LeftOut) -> Iterator[LeafView]:
        for place in places:
            node = choice.nodes[place]
            yield LeafView(
                leaf=node.id,
                request_role="" if node.sampled is None else node.sampled.request_role,
                num_tokens=node.num_path_tokens,
                num_unmasked=unmasked[place],
                reason=reason,
            )

    return [*views(choice.too_long, "too_long"), *views(fitting, "not_drawn")]


def _unmasked(choice: Choice) -> list[int]:
    """By node: the targets from its root to it that no drawn path carries. O(nodes)."""
    carried = {place for one in choice.admitted for place in one.fresh}
    sums: list[int] = []
    for place, parent in enumerate(choice.candidates.parents):
        above = 0 if parent is None else sums[parent]
        sums.append(above + (0 if place in carried else choice.candidates.targets[place]))
    return sums


def _class_order(spec: JobSpec) -> tuple[RequestRole, ...]:
    return harness_profile(spec.harness.profile).class_order


def _totals(
    tree: Tree, nodes: Mapping[str, NodeView], num_carried: int, num_path_tokens: int
) -> Totals:
    sampled = [view for view in nodes.values() if view.node.sampled is not None]
    tokens: Counter[Verdict] = Counter()
    for view in sampled:
        tokens[view.verdict] += len(view.node.token_ids)
    return Totals(
        counts=tree_counts(tree),
        num_nodes=len(nodes),
        num_input_nodes=len(nodes) - len(sampled),
        num_roots=len(tree.children(None)),
        calls=Counter(view.node.sampled.status for view in sampled if view.node.sampled),
        sampled_tokens=tokens,
        num_carried_tokens=num_carried,
        num_path_tokens=num_path_tokens,
    )
