"""From admitted paths to blocks: each path, each target and each context exactly, each prefix once
unless a tree is larger than a row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from gyre.core.blocks import BlockPlan, plan_trees
from gyre.core.microstep import NO_EDGE, ExecutionInfo, MicroStep, Row, TreeBlock
from gyre.core.samples import ExecutionSamples, choose
from gyre.core.tree import Tree, fold
from gyre.testkit.block_trees import ReadTarget, path_tokens, read_targets
from gyre.testkit.draws import draw_samples
from gyre.testkit.trajectory_world import Caller
from gyre.testkit.tree_paths import path_of, path_to

MOST_TOKENS = 6


@dataclass(frozen=True, kw_only=True)
class Forest:
    """paths: some of the root-to-leaf paths, by node. sizes: tokens by node, 0 for none."""

    paths: list[tuple[int, ...]]
    sizes: list[int]
    row_tokens: int

    def tokens(self, places: Sequence[int]) -> tuple[int, ...]:
        """Every node's tokens are its own."""
        return tuple(place * MOST_TOKENS + n for place in places for n in range(self.sizes[place]))

    def block(self, plan: BlockPlan) -> TreeBlock:
        """The plan's tokens; each of its own ones that something predicts is a target."""
        tokens = self.tokens(plan.places)
        repeated = len(self.tokens(plan.places[: plan.num_repeated]))
        roots = {edge.start for edge in plan.edges if edge.parent == NO_EDGE}
        positions = tuple(n for n in range(repeated, len(tokens)) if n not in roots)
        return TreeBlock(
            execution=0,
            token_ids=tokens,
            edges=plan.edges,
            target_positions=positions,
            behaviour_logprobs=(-1.0,) * len(positions),
            num_repeated_tokens=repeated,
        )


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    size = draw(st.integers(1, 24))
    parents = [
        draw(
            st.integers(max(-1, node - 5), node - 1).map(lambda above: None if above < 0 else above)
        )
        for node in range(size)
    ]
    sizes = draw(st.lists(st.integers(0, MOST_TOKENS), min_size=size, max_size=size))
    ends = sorted(set(range(size)) - {parent for parent in parents if parent is not None})
    for end in ends:  # a leaf holds targets
        sizes[end] = max(1, sizes[end])
    chosen = draw(st.lists(st.sampled_from(ends), min_size=1, unique=True))
    paths = [path_to(parents, end) for end in chosen]
    longest = max(sum(sizes[place] for place in path) for path in paths)
    return Forest(paths=paths, sizes=sizes, row_tokens=longest + draw(st.integers(0, 20)))


def planned(forest: Forest) -> tuple[BlockPlan, ...]:
    return plan_trees(forest.paths, forest.sizes, forest.row_tokens)


def num_repeated(forest: Forest, plans: Sequence[BlockPlan]) -> int:
    return sum(len(forest.tokens(plan.places[: plan.num_repeated])) for plan in plans)


@given(forests())
def test_blocks_expand_to_exactly_the_admitted_paths(forest: Forest) -> None:
    admitted = Counter(forest.tokens(path) for path in forest.paths)
    found = Counter(path for plan in planned(forest) for path in path_tokens(forest.block(plan)))
    assert found == admitted


@given(forests())
def test_a_node_is_one_block_s_own_and_repeated_above_others(forest: Forest) -> None:
    own = Counter(place for plan in planned(forest) for place in plan.places[plan.num_repeated :])
    assert own == Counter({place for path in forest.paths for place in path if forest.sizes[place]})


@given(forests())
def test_blocks_fit_into_rows_and_keep_every_invariant_of_a_micro_step(forest: Forest) -> None:
    blocks = [forest.block(plan) for plan in planned(forest)]
    info = ExecutionInfo(
        execution="e",
        group="g",
        advantage=1.0,
        num_targets=sum(len(block.target_positions) for block in blocks),
        temperature=1.0,
    )
    step = MicroStep(
        batch="b",
        index=0,
        row_tokens=forest.row_tokens,
        window_rows=1,
        normalizer=1,
        executions=(info,),
        rows=tuple(Row(blocks=(block,)) for block in blocks),
    )
    assert step.num_paths == len(forest.paths)
    assert step.num_path_tokens == sum(len(forest.tokens(path)) for path in forest.paths)
    unique = sum(forest.sizes[place] for place in {p for path in forest.paths for p in path})
    assert step.num_tokens == unique + step.num_repeated_tokens


@given(forests())
def test_a_tree_that_fits_is_one_block_of_one_root_without_repeats(forest: Forest) -> None:
    whole = plan_trees(forest.paths, forest.sizes, sum(forest.sizes))
    assert num_repeated(forest, whole) == 0
    for plan in whole:
        assert [edge.parent for edge in plan.edges].count(NO_EDGE) == 1
    roots = {next(p for p in path if forest.sizes[p]) for path in forest.paths}
    assert len(whole) == len(roots)


@given(forests())
def test_chains_are_one_edge(forest: Forest) -> None:
    for plan in planned(forest):
        below = Counter(edge.parent for edge in plan.edges)
        assert all(below[number] != 1 for number in range(len(plan.edges)))


def lengths_of(tree: TreeBlock) -> tuple[tuple[int, int], ...]:
    """(shared with the path before, own tokens), by path."""
    lengths: list[tuple[int, int]] = []
    before: set[int] = set()
    for leaf in tree.leaves:
        path = path_of(tree, leaf)
        shared = len(before.intersection(path))
        lengths.append((shared, len(path) - shared))
        before = set(path)
    return tuple(lengths)


@cache
def fewest_repeats(lengths: tuple[tuple[int, int], ...], row_tokens: int) -> int:
    """By trying all cuts. lengths: of a tree's paths, depth-first."""
    if not lengths:
        return 0
    costs, used = [], lengths[0][0]
    for stop, (_, own) in enumerate(lengths, start=1):
        used += own
        if used <= row_tokens:
            costs.append(lengths[0][0] + fewest_repeats(lengths[stop:], row_tokens))
    return min(costs)


@given(forests())
def test_no_cut_into_whole_paths_repeats_less(forest: Forest) -> None:
    whole = plan_trees(forest.paths, forest.sizes, sum(forest.sizes))
    trees = [lengths_of(forest.block(plan)) for plan in whole]
    best = sum(fewest_repeats(tree, forest.row_tokens) for tree in trees)
    assert num_repeated(forest, planned(forest)) == best


def test_a_tree_is_cut_where_least_is_shared_rather_than_where_a_row_is_full() -> None:
    """Nodes: 0 above 1 and 2, 2 above 3 and 4. A full first row (0 1 2 3) would leave 0 2 4."""
    sizes, paths = [10, 5, 10, 5, 5], [(0, 1), (0, 2, 3), (0, 2, 4)]
    plans = plan_trees(paths, sizes, 30)
    assert [plan.places for plan in plans] == [(0, 1), (0, 2, 3, 4)]
    assert [plan.num_repeated for plan in plans] == [0, 1]


def random_tree(rng: random.Random) -> Tree:
    """Calls below calls or on new roots, some of them not to be trained."""
    caller = Caller("x", rng)
    nodes: list[str | None] = [None]
    for _ in range(rng.randint(1, 14)):
        caller.version = rng.randint(3, 4)
        nodes.append(
            caller.call(
                rng.choice(nodes),
                role=rng.choice(["main", "main", "main-summary", "sub-agent", "other"]),
                outcome=rng.choice(["committed"] * 4 + ["aborted"]),
                num_input=rng.randint(1, 6),
                num_output=rng.randint(1, 8),
            )
        )
    return fold(caller.events)


def chosen_targets(
    tree: Tree, seed: int, row_tokens: int, max_trajectories: int
) -> Counter[ReadTarget]:
    """What admission chose, read off the tree: one node after the other."""
    choice = choose(
        tree,
        attempt=1,
        row_tokens=row_tokens,
        max_trajectories=max_trajectories,
        rng=random.Random(seed),
    )
    found: Counter[ReadTarget] = Counter()
    for node in (choice.nodes[place] for one in choice.admitted for place in one.fresh):
        assert node.sampled is not None
        context = tuple(tree.context_tokens(node.id))
        (span,) = node.sampled.spans
        for number, (token, logprob) in enumerate(
            zip(node.token_ids, node.sampled.logprobs, strict=True)
        ):
            found[
                ReadTarget(
                    context=(*context, *node.token_ids[:number]),
                    token_id=token,
                    behaviour_logprob=logprob,
                    version=span.version,
                )
            ] += 1
    return found


def targets_of(samples: ExecutionSamples) -> Counter[ReadTarget]:
    blocks = [block.of_execution(0) for block in samples.blocks]
    return Counter(target for block in blocks for target in read_targets(block))


@given(st.integers(0, 2**32), st.integers(20, 120), st.integers(1, 6))
def test_each_chosen_target_is_there_once_in_its_context_however_blocks_are_cut(
    seed: int, row_tokens: int, max_trajectories: int
) -> None:
    tree = random_tree(random.Random(seed))
    chosen = chosen_targets(tree, seed, row_tokens, max_trajectories)
    samples = draw_samples(
        tree,
        attempt=1,
        row_tokens=row_tokens,
        max_trajectories=max_trajectories,
        rng=random.Random(seed),
    )
    assert targets_of(samples) == chosen
    assert samples.num_targets == chosen.total()
    assert all(0 < len(block.token_ids) <= row_tokens for block in samples.blocks)


@given(st.integers(0, 2**32))
def test_every_path_ends_with_a_target(seed: int) -> None:
    """What follows it predicts nothing that is trained, so no row carries it."""
    tree = random_tree(random.Random(seed))
    samples = draw_samples(
        tree, attempt=1, rng=random.Random(seed), row_tokens=60, max_trajectories=6
    )
    for block in (block.of_execution(0) for block in samples.blocks):
        ends = {block.edges[leaf].stop - 1 for leaf in block.leaves}
        assert ends <= set(block.target_positions)
