"""Admission: which of an execution's paths are trained, and which targets each of them carries.

The law ("Trajectory sampling"): at most J_max trajectories; take the highest class that still has
unmasked targets, draw one leaf with probability proportional to its unmasked targets, freeze
exactly those, mask the whole root-to-leaf path, repeat.

Invariants (tests/properties/test_admission_law.py):
- no target is frozen twice, so no token is trained twice;
- what a trajectory carries are the targets of its path that were unmasked when it was drawn;
- a leaf of a lower class is drawn only when the higher ones have nothing left;
- the same random source gives the same draw.

Because a path is masked as a whole, a node's targets are either all masked or all unmasked, so
masks are kept by node. A draw costs O(nodes).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

# Eq. (4). `other` (title requests, say) is recorded and never admitted.
CLASS_ORDER: tuple[str, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An end of a path. node: its index. role: the request role of the call that sampled it."""

    node: int
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """An execution's tree as admission sees it, nodes in an order with parents first.

    parents[i]: index of node i's parent, None at a root. targets[i]: how many trainable tokens node
    i holds, 0 for everything the policy did not sample. leaves: ends of the paths, in order.
    """

    parents: Sequence[int | None]
    targets: Sequence[int]
    leaves: Sequence[Leaf]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A drawn trajectory. path: its nodes from root to leaf. fresh: those of them whose targets it
    carries; the rest of the path is context."""

    leaf: Leaf
    path: tuple[int, ...]
    fresh: tuple[int, ...]


def seeded(seed: int, execution: str) -> random.Random:
    """The random source of one execution's admission: a replay draws the same."""
    digest = sha256(f"admission\x1f{seed}\x1f{execution}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def admit(
    candidates: Candidates,
    *,
    max_trajectories: int,
    rng: random.Random,
    class_order: Sequence[str] = CLASS_ORDER,
) -> tuple[Admitted, ...]:
    """Draw up to `max_trajectories` (J_max) paths; mutates `rng` only."""
    masked = bytearray(len(candidates.parents))
    admitted: list[Admitted] = []
    while len(admitted) < max_trajectories:
        leaf = _draw(candidates, unmasked_targets(candidates, masked), rng, class_order)
        if leaf is None:
            break
        path = path_to(candidates.parents, leaf.node)
        fresh = tuple(node for node in path if not masked[node] and candidates.targets[node])
        for node in path:
            masked[node] = True
        admitted.append(Admitted(leaf=leaf, path=path, fresh=fresh))
    return tuple(admitted)


def unmasked_targets(candidates: Candidates, masked: Sequence[int]) -> list[int]:
    """For each node the unmasked targets on its path from the root, itself included."""
    counts: list[int] = []
    for parent, targets, hidden in zip(candidates.parents, candidates.targets, masked, strict=True):
        above = 0 if parent is None else counts[parent]
        counts.append(above if hidden else above + targets)
    return counts


def path_to(parents: Sequence[int | None], node: int) -> tuple[int, ...]:
    """Node indices from the root to `node`, both included."""
    path: list[int] = []
    here: int | None = node
    while here is not None:
        path.append(here)
        here = parents[here]
    return tuple(reversed(path))


def _draw(
    candidates: Candidates,
    counts: Sequence[int],
    rng: random.Random,
    class_order: Sequence[str],
) -> Leaf | None:
    """One leaf of the highest class that has any, with probability counts[leaf] / their sum."""
    for role in class_order:
        leaves = [leaf for leaf in candidates.leaves if leaf.role == role]
        total = sum(counts[leaf.node] for leaf in leaves)
        if total:
            return _at(leaves, counts, rng.randrange(total))
    return None


def _at(leaves: Sequence[Leaf], counts: Sequence[int], ticket: int) -> Leaf:
    """The leaf that owns `ticket` when the leaves' targets are numbered one after the other."""
    for leaf in leaves:
        if ticket < counts[leaf.node]:
            return leaf
        ticket -= counts[leaf.node]
    raise AssertionError("the ticket is below the sum of the counts")
