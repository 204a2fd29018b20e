"""Law `admission` on random trees."""

from __future__ import annotations

import random
from collections import Counter
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from gyre.core.admission import (
    CLASS_ORDER,
    Admitted,
    Candidates,
    Leaf,
    admit,
    seeded,
)
from gyre.testkit.tree_paths import path_to

ROLES = (*CLASS_ORDER, "other")

caps = st.none() | st.integers(1, 8)


@st.composite
def trees(draw: st.DrawFn) -> Candidates:
    """Forests with parents first; every childless node is a leaf of some class."""
    size = draw(st.integers(1, 30))
    parents = [draw(st.none() | st.integers(0, node - 1)) if node else None for node in range(size)]
    targets = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    ends = sorted(set(range(size)) - {parent for parent in parents if parent is not None})
    leaves = [Leaf(node=node, role=draw(st.sampled_from(ROLES))) for node in ends]
    return Candidates(parents=parents, targets=targets, leaves=leaves)


def forest(rng: random.Random, size: int) -> Candidates:
    """Deep and wide, its leaves in any order; now and then a leaf has others below it."""
    near = rng.randint(1, size)
    parents = [None] + [
        rng.choice([None, *range(max(0, node - near), node)]) for node in range(1, size)
    ]
    inner = {parent for parent in parents if parent is not None}
    ends = [node for node in range(size) if node not in inner or rng.random() < 0.02]
    rng.shuffle(ends)
    return Candidates(
        parents=parents,
        targets=[rng.choice((0, 0, 1, 2, 9)) for _ in range(size)],
        leaves=[Leaf(node=node, role=rng.choice(ROLES)) for node in ends],
    )


def masked_before(admitted: tuple[Admitted, ...], place: int) -> set[int]:
    return {node for earlier in admitted[:place] for node in earlier.path}


def left_on(candidates: Candidates, leaf: Leaf, masked: set[int]) -> int:
    path = path_to(candidates.parents, leaf.node)
    return sum(candidates.targets[node] for node in path if node not in masked)


Drawn: TypeAlias = tuple[Leaf, tuple[int, ...], tuple[int, ...]]


def drawn(admitted: tuple[Admitted, ...]) -> list[Drawn]:
    """Leaf, path and fresh nodes of each."""
    return [(one.leaf, one.path, one.fresh) for one in admitted]


def by_the_law(candidates: Candidates, cap: int | None, rng: random.Random) -> list[Drawn]:
    """The law, word by word: every count from the mask, for every draw."""
    admitted: list[Drawn] = []
    masked: set[int] = set()
    while cap is None or len(admitted) < cap:
        left = {leaf.node: left_on(candidates, leaf, masked) for leaf in candidates.leaves}
        for role in CLASS_ORDER:
            leaves = [leaf for leaf in candidates.leaves if leaf.role == role and left[leaf.node]]
            if leaves:
                break
        else:
            break
        tickets = [leaf for leaf in leaves for _ in range(left[leaf.node])]
        leaf = tickets[rng.randrange(len(tickets))]
        path = path_to(candidates.parents, leaf.node)
        fresh = tuple(node for node in path if candidates.targets[node] and node not in masked)
        masked.update(path)
        admitted.append((leaf, path, fresh))
    return admitted


@given(st.integers(), st.integers(1, 120), caps)
def test_what_is_admitted_is_what_the_law_says_draw_by_draw(
    seed: int, size: int, cap: int | None
) -> None:
    candidates = forest(random.Random(seed), size)
    admitted = admit(candidates, max_trajectories=cap, rng=random.Random(seed))
    assert drawn(admitted) == by_the_law(candidates, cap, random.Random(seed))


@given(st.integers(), st.integers(1, 120), caps)
def test_what_is_a_trajectorys_own_is_in_no_earlier_one(
    seed: int, size: int, cap: int | None
) -> None:
    candidates = forest(random.Random(seed), size)
    seen: set[int] = set()
    for one in admit(candidates, max_trajectories=cap, rng=random.Random(seed)):
        assert one.own == tuple(node for node in one.path if node not in seen)
        seen.update(one.path)


@given(trees(), st.integers(1, 8), st.integers())
def test_each_target_is_frozen_at_most_once(
    candidates: Candidates, max_trajectories: int, seed: int
) -> None:
    admitted = admit(candidates, max_trajectories=max_trajectories, rng=random.Random(seed))
    frozen = Counter(node for one in admitted for node in one.fresh)
    assert all(count == 1 for count in frozen.values())


@given(trees(), st.integers(1, 8), st.integers())
def test_at_most_j_max_trajectories_and_each_carries_targets(
    candidates: Candidates, max_trajectories: int, seed: int
) -> None:
    admitted = admit(candidates, max_trajectories=max_trajectories, rng=random.Random(seed))
    assert len(admitted) <= max_trajectories
    assert all(one.fresh for one in admitted)


@given(trees(), st.integers(1, 8), st.integers())
def test_frozen_targets_are_those_of_the_path_unmasked_at_the_draw(
    candidates: Candidates, max_trajectories: int, seed: int
) -> None:
    admitted = admit(candidates, max_trajectories=max_trajectories, rng=random.Random(seed))
    for place, one in enumerate(admitted):
        masked = masked_before(admitted, place)
        expected = [n for n in one.path if candidates.targets[n] and n not in masked]
        assert list(one.fresh) == expected
        assert one.path == path_to(candidates.parents, one.leaf.node)


@given(trees(), st.integers(1, 8), st.integers())
def test_a_lower_class_is_drawn_only_when_the_higher_have_nothing_left(
    candidates: Candidates, max_trajectories: int, seed: int
) -> None:
    admitted = admit(candidates, max_trajectories=max_trajectories, rng=random.Random(seed))
    for place, one in enumerate(admitted):
        masked = masked_before(admitted, place)
        higher = CLASS_ORDER[: CLASS_ORDER.index(one.leaf.role)]
        for leaf in candidates.leaves:
            assert leaf.role not in higher or left_on(candidates, leaf, masked) == 0


@given(trees(), st.integers())
def test_without_a_cap_every_admissible_target_is_admitted(
    candidates: Candidates, seed: int
) -> None:
    admitted = admit(candidates, max_trajectories=None, rng=random.Random(seed))
    reachable = {
        node
        for leaf in candidates.leaves
        if leaf.role in CLASS_ORDER
        for node in path_to(candidates.parents, leaf.node)
        if candidates.targets[node]
    }
    assert {node for one in admitted for node in one.fresh} == reachable


@given(trees(), st.integers(1, 8), st.integers(), st.text(max_size=8))
def test_the_same_seed_draws_the_same(
    candidates: Candidates, max_trajectories: int, seed: int, execution: str
) -> None:
    first, second = (
        admit(candidates, max_trajectories=max_trajectories, rng=seeded(seed, execution))
        for _ in range(2)
    )
    assert first == second


def test_a_leaf_is_drawn_in_proportion_to_its_unmasked_targets() -> None:
    # A shared root of 2 targets, then leaves of 1, 3 and 6 more: 3, 5 and 8 of 16.
    candidates = Candidates(
        parents=[None, 0, 0, 0],
        targets=[2, 1, 3, 6],
        leaves=[Leaf(node=node, role="main") for node in (1, 2, 3)],
    )
    rng = random.Random(7)
    draws = 20_000
    first = Counter(
        admit(candidates, max_trajectories=1, rng=rng)[0].leaf.node for _ in range(draws)
    )
    for node, share in ((1, 3 / 16), (2, 5 / 16), (3, 8 / 16)):
        # Four standard deviations of a binomial share.
        assert abs(first[node] / draws - share) < 4 * (share * (1 - share) / draws) ** 0.5


def test_masking_a_shared_prefix_reweights_the_next_draw() -> None:
    # After leaf 3 is drawn the shared root is masked: 1 and 3 targets are left of 3 and 5.
    candidates = Candidates(
        parents=[None, 0, 0, 0],
        targets=[2, 1, 3, 100_000],
        leaves=[Leaf(node=node, role="main") for node in (1, 2, 3)],
    )
    rng = random.Random(11)
    second: Counter[int] = Counter()
    for _ in range(8_000):
        admitted = admit(candidates, max_trajectories=2, rng=rng)
        if admitted[0].leaf.node == 3:
            second[admitted[1].leaf.node] += 1
    share = second[1] / sum(second.values())
    assert abs(share - 1 / 4) < 4 * (1 / 4 * 3 / 4 / sum(second.values())) ** 0.5


def test_by_hand_the_cap_leaves_out_what_the_lower_classes_hold() -> None:
    # main 4 + summary 2 on one root, a sub-agent of 9 on its own root, a title request of 50.
    candidates = Candidates(
        parents=[None, 0, 0, None, None],
        targets=[3, 4, 2, 9, 50],
        leaves=[
            Leaf(node=1, role="main"),
            Leaf(node=2, role="main-summary"),
            Leaf(node=3, role="sub-agent"),
            Leaf(node=4, role="other"),
        ],
    )
    admitted = admit(candidates, max_trajectories=2, rng=random.Random(0))
    assert [(one.leaf.role, one.fresh) for one in admitted] == [
        ("main", (0, 1)),
        ("main-summary", (2,)),
    ]
    everything = admit(candidates, max_trajectories=None, rng=random.Random(0))
    assert [one.leaf.role for one in everything] == ["main", "main-summary", "sub-agent"]


def test_the_order_of_classes_is_the_callers() -> None:
    candidates = Candidates(
        parents=[None, None, None],
        targets=[3, 4, 5],
        leaves=[Leaf(node=node, role=role) for node, role in enumerate(("main", "a", "b"))],
    )
    admitted = admit(
        candidates, max_trajectories=None, rng=random.Random(0), class_order=("b", "main")
    )
    assert [one.leaf.role for one in admitted] == ["b", "main"]
