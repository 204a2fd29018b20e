"""Blocks of single paths and blocks of trees, one made from the other, token by token and slowly:
what the fast code of `gyre.core.blocks` and the trainer is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gyre.core.microstep import NO_EDGE, Edge, TreeBlock
from gyre.testkit.tree_paths import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTarget:
    """One target as a trainer reads it. context: the tokens before it on its root path."""

    context: tuple[int, ...]
    token_id: int
    behaviour_logprob: float
    version: int | None


def read_targets(block: TreeBlock) -> list[ReadTarget]:
    """The block's targets in their order."""
    versions: Sequence[int | None] = block.versions or (None,) * len(block.target_positions)
    paths = [path_of(block, edge) for edge in range(len(block.edges))]
    edge_of = [n for n, edge in enumerate(block.edges) for _ in range(edge.start, edge.stop)]
    found = []
    for place, logprob, version in zip(
        block.target_positions, block.behaviour_logprobs, versions, strict=True
    ):
        path = paths[edge_of[place]]
        found.append(
            ReadTarget(
                context=tuple(block.token_ids[above] for above in path[: path.index(place)]),
                token_id=block.token_ids[place],
                behaviour_logprob=logprob,
                version=version,
            )
        )
    return found


def path_tokens(block: TreeBlock) -> list[tuple[int, ...]]:
    """Each root-to-leaf path's tokens, depth-first."""
    return [
        tuple(block.token_ids[place] for place in path_of(block, leaf)) for leaf in block.leaves
    ]


@dataclass(slots=True, kw_only=True, eq=False)
class _Token:
    """One token of the tree under construction. target: its logprob and version, if it is one."""

    token_id: int
    target: tuple[float, int | None] | None = None
    below: list[_Token] = field(default_factory=list)


def merged(blocks: Sequence[TreeBlock]) -> list[TreeBlock]:
    """Paths of one execution (blocks of one edge) as one block for each root.

    Two targets never share a token: where both paths would train one, the second branches off.
    """
    root = _Token(token_id=-1)
    for block in blocks:
        assert len(block.edges) == 1, "a path is a block of one edge"
        _insert(root, block)
    return [_flat(tree, blocks[0].execution, bool(blocks[0].versions)) for tree in root.below]


def _insert(root: _Token, block: TreeBlock) -> None:
    versions: Sequence[int | None] = block.versions or (None,) * len(block.target_positions)
    targets = dict(
        zip(
            block.target_positions,
            zip(block.behaviour_logprobs, versions, strict=True),
            strict=True,
        )
    )
    here = root
    for position, token in enumerate(block.token_ids):
        target = targets.get(position)
        child = _shared(here.below, token, target)
        if child is None:
            child = _Token(token_id=token)
            here.below.append(child)
        child.target = child.target or target
        here = child


def _shared(
    below: Iterable[_Token], token: int, target: tuple[float, int | None] | None
) -> _Token | None:
    fitting = (one for one in below if one.token_id == token)
    return next((one for one in fitting if target is None or one.target is None), None)


def _flat(root: _Token, execution: int, versioned: bool) -> TreeBlock:
    edges: list[Edge] = []
    tokens = list(_depth_first(root, NO_EDGE, edges))
    positions = [place for place, token in enumerate(tokens) if token.target is not None]
    targets = [tokens[place].target or (0.0, None) for place in positions]
    return TreeBlock(
        execution=execution,
        token_ids=tuple(token.token_id for token in tokens),
        edges=tuple(edges),
        target_positions=tuple(positions),
        behaviour_logprobs=tuple(logprob for logprob, _ in targets),
        versions=tuple(version or 0 for _, version in targets) if versioned else (),
    )


def _depth_first(token: _Token, parent: int, edges: list[Edge]) -> Iterator[_Token]:
    """Appends to `edges`. Recursion by branch, not by token."""
    start = edges[-1].stop if edges else 0
    run = [token]
    while len(run[-1].below) == 1:
        run.append(run[-1].below[0])
    number = len(edges)
    edges.append(Edge(start=start, stop=start + len(run), parent=parent))
    yield from run
    for child in run[-1].below:
        yield from _depth_first(child, number, edges)
