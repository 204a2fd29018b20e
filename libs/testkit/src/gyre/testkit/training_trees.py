"""Micro-steps of random trees, and the same executions with every path in a row of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gyre.core.microstep import NO_EDGE, Edge, ExecutionInfo, MicroStep, Row, TreeBlock
from gyre.core.samples import ExecutionSamples
from gyre.testkit.block_trees import merged, path_tokens
from gyre.testkit.tree_paths import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """num_edges, edge_tokens: at most. depth_first: the chance that an edge hangs below the one
    before it; 1.0 gives one deep path. vocab_size: small ones give siblings that begin equally."""

    num_edges: int
    edge_tokens: int
    depth_first: float
    vocab_size: int


def random_block(
    rng: random.Random, shape: TreeShape, *, execution: int = 0, prompt: Sequence[int] = ()
) -> TreeBlock:
    """One tree below `prompt`, or several roots without one. Half of the tokens are targets; a
    block of one token has none, for lack of a predecessor."""
    tokens, edges, open_path = list(prompt), list[Edge](), list[int]()
    if prompt:
        edges.append(Edge(start=0, stop=len(prompt), parent=NO_EDGE))
        open_path.append(0)
    num_fixed = len(open_path)
    for _ in range(rng.randint(1, shape.num_edges)):
        while len(open_path) > num_fixed and rng.random() > shape.depth_first:
            open_path.pop()
        start = len(tokens)
        size = rng.randint(1, shape.edge_tokens)
        tokens += [rng.randrange(shape.vocab_size) for _ in range(size)]
        parent = open_path[-1] if open_path else NO_EDGE
        open_path.append(len(edges))
        edges.append(Edge(start=start, stop=len(tokens), parent=parent))
    roots = {edge.start for edge in edges if edge.parent == NO_EDGE}
    places = [n for n in range(len(prompt), len(tokens)) if n not in roots]
    targets = [place for place in places if rng.random() < 0.5] or places[-1:]
    return TreeBlock(
        execution=execution,
        token_ids=tuple(tokens),
        edges=tuple(edges),
        target_positions=tuple(targets),
        behaviour_logprobs=tuple(-3.0 + rng.uniform(-1, 1) for _ in targets),
        versions=tuple(rng.choice([3, 4]) for _ in targets),
    )


def random_tree_step(
    rng: random.Random, shape: TreeShape, *, num_executions: int, prompt_tokens: int = 3
) -> MicroStep:
    """A row for each execution, all in one window; each second one starts with the group's prompt,
    the others with roots of their own. The last execution is a placeholder without a row."""
    prompt = [rng.randrange(shape.vocab_size) for _ in range(prompt_tokens)]
    blocks = [
        random_block(rng, shape, execution=number, prompt=prompt if number % 2 == 0 else ())
        for number in range(num_executions)
    ]
    infos = [
        ExecutionInfo(
            execution=f"e{number}",
            group="g",
            advantage=rng.choice([-1.25, -0.5, 0.5, 1.0]),
            num_targets=len(block.target_positions),
            temperature=rng.choice([1.0, 0.7]),
        )
        for number, block in enumerate(blocks)
    ]
    gone = ExecutionInfo(
        execution="gone", group="g", advantage=-1.0, num_targets=0, temperature=1.0
    )
    return MicroStep(
        batch="b0",
        index=0,
        row_tokens=max(len(block.token_ids) for block in blocks),
        window_rows=len(blocks),
        normalizer=len(blocks) + 2,
        executions=(*infos, gone),
        rows=tuple(Row(blocks=(block,)) for block in blocks),
    )


def laid_flat(step: MicroStep, *, window_rows: int = 1) -> MicroStep:
    """Every path a row of its own: the split that repeats most. A target that several paths pass
    stays with the first of them. Targets come in the order of `step`."""
    rows = tuple(Row(blocks=(path,)) for block in step.blocks for path in flat_paths(block))
    return replace(step, rows=rows, window_rows=window_rows)


def flat_paths(block: TreeBlock) -> Iterator[TreeBlock]:
    """Paths without targets of their own are left out: they would train nothing."""
    target_at = {place: number for number, place in enumerate(block.target_positions)}
    taken: set[int] = set()
    for leaf in block.leaves:
        path = path_of(block, leaf)
        fresh = [at for at, place in enumerate(path) if place in target_at and place not in taken]
        numbers = [target_at[path[at]] for at in fresh]
        taken.update(path)
        if fresh:
            yield replace(
                block,
                token_ids=tuple(block.token_ids[place] for place in path),
                edges=(Edge(start=0, stop=len(path), parent=NO_EDGE),),
                target_positions=tuple(fresh),
                behaviour_logprobs=tuple(block.behaviour_logprobs[n] for n in numbers),
                versions=tuple(block.versions[n] for n in numbers) if block.versions else (),
                num_repeated_tokens=0,
            )


def split_trees(step: MicroStep, *, paths_per_block: int, window_rows: int) -> MicroStep:
    """Every block cut into blocks of so many paths, each a row, which repeat the prefix that they
    need as context. The order of targets may change."""
    rows = []
    for block in step.blocks:
        paths = list(flat_paths(block))
        for first in range(0, len(paths), paths_per_block):
            parts = merged(paths[first : first + paths_per_block])
            rows += [Row(blocks=(part,)) for part in parts]
    return replace(step, rows=tuple(rows), window_rows=window_rows)


def step_of_samples(samples: ExecutionSamples, *, vocab_size: int, window_rows: int) -> MicroStep:
    """One execution's admitted blocks, each a row, its tokens within a small vocabulary."""
    info = ExecutionInfo(
        execution="e0",
        group="g",
        advantage=1.0,
        num_targets=samples.num_targets,
        temperature=samples.temperature,
    )
    blocks = [
        replace(tree, token_ids=tuple(token % vocab_size for token in tree.token_ids))
        for tree in (block.of_execution(0) for block in samples.blocks)
    ]
    return MicroStep(
        batch="b0",
        index=0,
        row_tokens=max(len(block.token_ids) for block in blocks),
        window_rows=window_rows,
        normalizer=4,
        executions=(info,),
        rows=tuple(Row(blocks=(block,)) for block in blocks),
    )


def num_distinct_prefixes(blocks: Iterable[TreeBlock]) -> int:
    """Unique tokens, counted naively: a token is what it is together with all before it."""
    return len({path[: n + 1] for b in blocks for path in path_tokens(b) for n in range(len(path))})
