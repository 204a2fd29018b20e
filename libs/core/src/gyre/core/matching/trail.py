"""Where earlier walks stood, so that a request that repeats their messages goes on from there.

A walk looks up what each message leads to at the node that it stands at. Repeated, each look-up
gives the same unless something was learnt or forgotten at that very node, or a turn sampled right
after it was sent. So all such nodes are written down in their order (`Changes`), a trail names
those that its walk looked things up at, by their depth, and it is good up to the first that was
changed since the walk began. That is exact, and O(changes), so that a long history costs nothing.

A walk can be taken up behind an assistant's turn: how inputs are read depends on those behind them,
up to the next turn.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from gyre.core.tree import Tree

Cursor = str | None


@dataclass(slots=True)
class Changes:
    """The nodes of one tree where look-ups changed, in their order. Mutated by `at`."""

    _nodes: list[Cursor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._nodes)

    def at(self, cursor: Cursor) -> None:
        """What is found at `cursor` may be another thing from now on."""
        self._nodes.append(cursor)

    def since(self, number: int) -> set[Cursor]:
        """Nodes that were changed after the first `number` changes."""
        return set(self._nodes[number:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A walk stood at `cursor`, right behind a turn, after this many messages and look-ups."""

    num_messages: int
    num_lookups: int
    cursor: Cursor


@dataclass(slots=True, kw_only=True)
class Trail:
    """One walk's way. Mutated by the matcher that it is given to.

    before: an earlier walk's, which it takes over; the first `num_same` messages are that one's
    own, not counting the num_lead ones that a request says beside its list. changes: of the tree,
    and num_changes: how many there were when the walk began; None before that. cursors: where
    something was looked up, in order, and depths: the tokens above each.
    """

    before: Trail | None = None
    num_lead: int = 0
    num_same: int = 0
    changes: Changes | None = None
    num_changes: int = 0
    cursors: list[Cursor] = field(default_factory=list)
    depths: array[int] = field(default_factory=lambda: array("q"))
    marks: list[Mark] = field(default_factory=list)

    def next(self, num_lead: int, num_same: int) -> Trail:
        """Of a request whose first messages are this one's."""
        if self.changes is None and self.before is not None:  # no walk came of it
            return Trail(
                before=self.before, num_lead=num_lead, num_same=min(num_same, self.num_same)
            )
        return Trail(before=self, num_lead=num_lead, num_same=num_same)

    def begin(self, changes: Changes, tree: Tree, head: Cursor) -> Mark | None:
        """A walk begins; it stands at `head`, behind what opens its messages. Returns where it may
        go on."""
        before, self.before = self.before, None
        self.changes, self.num_changes = changes, len(changes)
        if (
            before is None
            or before.changes is not changes
            or before.num_lead != self.num_lead
            or before.cursors[:1] != [head]
        ):
            return None
        # It goes from one to the other: a copy for each call would cost as much as the walk.
        self.cursors, before.cursors = before.cursors, []
        self.depths, self.marks = before.depths, before.marks
        self._cut(tree, before.num_changes)
        return self.marks[-1] if self.marks else None

    def look(self, tree: Tree, cursor: Cursor) -> None:
        """Something is looked up at `cursor`."""
        self.cursors.append(cursor)
        self.depths.append(tree.num_path_tokens(cursor))

    def mark(self, num_messages: int, cursor: Cursor) -> None:
        """The walk stands at `cursor`, right behind the turn that is the last of `num_messages`,
        and all of them were known."""
        self.marks.append(
            Mark(num_messages=num_messages, num_lookups=len(self.cursors), cursor=cursor)
        )

    def _cut(self, tree: Tree, num_changes: int) -> None:
        """Leaves what is still good, up to the last mark."""
        assert self.changes is not None
        self._leave(self.num_lead + self.num_same, len(self.cursors))
        good = len(self.cursors)
        for cursor in self.changes.since(num_changes):
            good = min(good, self._first(tree, cursor))
        self._leave(self.num_lead + self.num_same, good)

    def _leave(self, num_messages: int, num_lookups: int) -> None:
        """Up to the last mark within these. What is left goes ever deeper."""
        while self.marks:
            last = self.marks[-1]
            if last.num_messages <= num_messages and last.num_lookups <= num_lookups:
                break
            self.marks.pop()
        end = self.marks[-1].num_lookups if self.marks else 0
        del self.cursors[end:], self.depths[end:]

    def _first(self, tree: Tree, cursor: Cursor) -> int:
        """The first look-up at `cursor`; behind all where there is none."""
        if cursor is not None and cursor not in tree.nodes:
            return len(self.cursors)  # so what led there was forgotten, too
        depth = tree.num_path_tokens(cursor)
        index = bisect_left(self.depths, depth)
        while index < len(self.depths) and self.depths[index] == depth:
            if self.cursors[index] == cursor:
                return index
            index += 1
        return len(self.cursors)
