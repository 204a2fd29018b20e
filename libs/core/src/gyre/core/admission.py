"""Admission: which of an execution's paths are trained, and which targets each of them carries.

The law ("Trajectory sampling"): at most J_max trajectories; take the highest class that still has
unmasked targets, draw one leaf with probability proportional to its unmasked targets, freeze
exactly those, mask the whole root-to-leaf path, repeat.

Invariants (tests/properties/test_admission_law.py):
- no target is frozen twice, so no token is trained twice;
- what a trajectory carries are the targets of its path that were unmasked when it was drawn;
- a leaf of a lower class is drawn only when the higher ones have nothing left;
- the same random source gives the same draw.

Because a path is masked as a whole, a node's targets are either all masked or all unmasked, and
what is masked of a path is its upper part. So a draw changes the count of those leaves alone that
hang below the part it masks, all of them by what lies between there and where they branch off.
O(nodes) to begin with; then a draw is O(leaves of its class / _BLOCK) to look the leaf up, and
O(those leaves + that part) to mask its path.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, chain

from msgspec import Struct

from gyre.contracts.events.calls import RequestRole

# Eq. (4), the order of Claude Code's classes, which other harnesses have too. The harness's profile
# says it (`HarnessProfile.class_order`); a role that is not in it, such as `other` (title requests,
# say), is recorded and never admitted.
CLASS_ORDER: tuple[RequestRole, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")

# Leaves are looked up by blocks of so many: a draw adds up the blocks and then one block, which for
# some thousands of leaves is less work than a tree of sums that every change has to climb.
_BLOCK = 16


class Leaf(Struct, frozen=True, kw_only=True, gc=False):
    """An end of a path. node: its index. role: the request role of the call that sampled it."""

    node: int
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """An execution's tree as admission sees it, nodes in an order with parents first.

    parents[i]: index of node i's parent, None at a root. targets[i]: how many trainable tokens node
    i holds, 0 for everything the policy did not sample. leaves: ends of the paths, in order, each
    another node.
    """

    parents: Sequence[int | None]
    targets: Sequence[int]
    leaves: Sequence[Leaf]


class Admitted(Struct, frozen=True, kw_only=True, gc=False):
    """A drawn trajectory. own: the nodes of its path that no earlier one has, down to the leaf.
    above: the earlier one that it leaves, None when the path is its own from the root on; of the
    nodes that are `own` there, num_above are on this path too. fresh: nodes whose targets it
    carries; the rest of the path is context.
    """

    leaf: Leaf
    own: tuple[int, ...]
    fresh: tuple[int, ...]
    above: Admitted | None = None
    num_above: int = 0

    @property
    def path(self) -> tuple[int, ...]:
        """All its nodes, from root to leaf. Laid out at each call: together, paths are as long as
        the tree written out."""
        pieces = [self.own]
        here = self
        while here.above is not None:
            pieces.append(here.above.own[: here.num_above])
            here = here.above
        return tuple(chain.from_iterable(reversed(pieces)))


def seeded(seed: int, execution: str) -> random.Random:
    """The random source of one execution's admission: a replay draws the same."""
    digest = sha256(f"admission\x1f{seed}\x1f{execution}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def admit(
    candidates: Candidates,
    *,
    max_trajectories: int | None,
    rng: random.Random,
    class_order: Sequence[str] = CLASS_ORDER,
) -> tuple[Admitted, ...]:
    """Draw up to `max_trajectories` (J_max) paths, all of them for None; mutates `rng` only."""
    draft = _Draft(candidates, class_order)
    most = len(candidates.leaves) if max_trajectories is None else max_trajectories
    while len(draft.admitted) < most:
        slot = draft.draw(rng)
        if slot is None:
            break
        draft.admit(slot)
    return tuple(draft.admitted)


class _Draft:
    """One admission so far. Mutated by `draw` and `admit` only.

    Each leaf has a slot, class by class in the order of the leaves: counts[slot] are its unmasked
    targets, whole[slot] those of its path, masked or not. blocks[b] is the sum of _BLOCK counts,
    and every class begins with a block of its own. Each leaf also has a place, such that the leaves
    below a node v are consecutive: first[v], ..., first[v] + num[v] - 1. slots[place] is its slot.
    sums[v]: targets from the root to v.
    """

    def __init__(self, candidates: Candidates, class_order: Sequence[str]) -> None:
        self.admitted: list[Admitted] = []
        self._parents, self._targets = candidates.parents, candidates.targets
        # Which trajectory masks a node, by its place in `admitted`; -1 for none.
        self._masked_by = [-1] * len(self._parents)
        self._leaves, self._classes = _slots(candidates.leaves, class_order)
        ends = {leaf.node: slot for slot, leaf in self._leaves.items()}
        self._num = _leaves_below(self._parents, ends)
        self._first, self._sums = _places(candidates, self._num, ends)
        self._slots = [ends[node] for node in sorted(ends, key=self._first.__getitem__)]
        self._whole = [0] * (self._classes[-1].stop * _BLOCK if self._classes else 0)
        for node, slot in ends.items():
            self._whole[slot] = self._sums[node]
        self._counts = self._whole.copy()
        starts = range(0, len(self._counts), _BLOCK)
        self._blocks = [sum(self._counts[at : at + _BLOCK]) for at in starts]

    def draw(self, rng: random.Random) -> int | None:
        """The slot of one leaf of the highest class that has any targets left, with probability
        count / their sum; None when nothing is left."""
        while self._classes:
            here = self._classes[0]
            sums = list(accumulate(self._blocks[here.start : here.stop]))
            if sums and sums[-1]:
                # Targets are numbered leaf by leaf: whose is the ticket?
                ticket = rng.randrange(sums[-1])
                block = bisect_right(sums, ticket)
                ticket -= sums[block - 1] if block else 0
                slot = (here.start + block) * _BLOCK
                within = list(accumulate(self._counts[slot : slot + _BLOCK]))
                return slot + bisect_right(within, ticket)
            # What is masked stays masked.
            self._classes.popleft()
        return None

    def admit(self, slot: int) -> None:
        """Freezes what is unmasked of the leaf's path and masks the path."""
        parents, masked_by, num = self._parents, self._masked_by, self._num
        number = len(self.admitted)
        self._blocks[slot // _BLOCK] -= self._counts[slot]
        self._counts[slot] = 0
        leaf = self._leaves[slot]
        low, high = self._first[leaf.node], self._first[leaf.node] + 1
        part: list[int] = []
        node: int | None = leaf.node
        while node is not None and masked_by[node] < 0:
            masked_by[node] = number
            part.append(node)
            if num[node] > high - low:
                low, high = self._recount(node, low, high)
            node = parents[node]
        part.reverse()
        targets = self._targets
        fresh = tuple([node for node in part if targets[node]])
        above, num_above = None, 0
        if node is not None:
            above = self.admitted[masked_by[node]]
            # Indices rise along a path, since parents come first.
            num_above = bisect_right(above.own, node)
        self.admitted.append(
            Admitted(leaf=leaf, own=tuple(part), fresh=fresh, above=above, num_above=num_above)
        )

    def _recount(self, node: int, low: int, high: int) -> tuple[int, int]:
        """Counts the leaves below `node` anew, but for those at places low..high, which branch off
        further down: the path is masked from the root to `node`. Returns the places of all."""
        start = self._first[node]
        stop = start + self._num[node]
        masked = self._sums[node]
        counts, blocks, whole = self._counts, self._blocks, self._whole
        for slot in (*self._slots[start:low], *self._slots[high:stop]):
            count = whole[slot] - masked
            blocks[slot // _BLOCK] -= counts[slot] - count
            counts[slot] = count
        return start, stop


def _slots(
    leaves: Sequence[Leaf], class_order: Sequence[str]
) -> tuple[dict[int, Leaf], deque[range]]:
    """The leaf of each slot, and the blocks of each class."""
    by_slot: dict[int, Leaf] = {}
    classes: deque[range] = deque()
    block = 0
    for role in class_order:
        members = [leaf for leaf in leaves if leaf.role == role]
        by_slot.update(enumerate(members, start=block * _BLOCK))
        classes.append(range(block, block + -(-len(members) // _BLOCK)))
        block = classes[-1].stop
    return by_slot, classes


def _leaves_below(parents: Sequence[int | None], ends: Collection[int]) -> list[int]:
    """Of each node, itself included."""
    num = [0] * len(parents)
    for node in ends:
        num[node] = 1
    for node in range(len(parents) - 1, -1, -1):
        parent = parents[node]
        if parent is not None:
            num[parent] += num[node]
    return num


def _places(
    candidates: Candidates, num: Sequence[int], ends: Collection[int]
) -> tuple[list[int], list[int]]:
    """The place of the first leaf below each node, and the targets from the root to it."""
    first, sums = [0] * len(num), list(candidates.targets)
    # The place of the next leaf below a node.
    free = [0] * len(num)
    free_root = 0
    for node, parent in enumerate(candidates.parents):
        if parent is None:
            at = free_root
            free_root += num[node]
        else:
            at = free[parent]
            free[parent] += num[node]
            sums[node] += sums[parent]
        first[node] = at
        free[node] = at + 1 if node in ends else at
    return first, sums
