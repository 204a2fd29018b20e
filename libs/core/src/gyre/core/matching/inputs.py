"""What is read between two assistant turns, and the nodes that are known by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.core.matching.echoes import Piece, input_pieces
from gyre.core.messages import Message
from gyre.core.tree import Tree

Keys = tuple[bytes, ...]

# Agent programs put a handful of reminders beside an input. Without a bound, thousands of them in
# another order would take quadratic time.
MAX_FREE = 64


class InputRun:
    """The messages between two turns as texts, taken one after the other; reminders in any place.

    Mutated by `take`. A node that is known took some of them; what is left is new.
    """

    __slots__ = ("_counts", "_left", "_messages", "_num_reminders")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        pieces = [input_pieces(message) for message in messages]
        self._counts = [len(found) for found in pieces]
        # The first one lies last, where taking it costs nothing.
        self._left: list[tuple[Piece, int]] = [
            (piece, index) for index, found in enumerate(pieces) for piece in found
        ]
        self._left.reverse()
        self._num_reminders = sum(reminder for (_, reminder), _ in self._left)

    def __bool__(self) -> bool:
        return bool(self._left)

    def heads(self) -> Iterator[bytes]:
        """Keys that may be taken now, in the client's order: of the first text that is no reminder,
        and of every reminder."""
        return (self._left[position][0][0] for position in self._free())

    def take(self, keys: Keys) -> bool:
        """Takes all of them, in order, or none."""
        positions: list[int] = []
        for key in keys:
            position = self._position(key, positions)
            if position is None:
                return False
            positions.append(position)
        for position in sorted(positions, reverse=True):
            self._num_reminders -= self._left.pop(position)[0][1]
        return True

    def _position(self, key: bytes, taken: Sequence[int]) -> int | None:
        for position in self._free(taken):
            if self._left[position][0][0] == key:
                return position
        return None

    def _free(self, taken: Sequence[int] = ()) -> Iterator[int]:
        """Positions that may be taken after those in `taken`."""
        is_first, last = True, len(self._left) - 1
        for position in range(last, max(-1, last - MAX_FREE), -1):
            if position in taken:
                continue
            reminder = self._left[position][0][1]
            if is_first or reminder:
                yield position
            is_first = is_first and reminder
            if not is_first and not self._num_reminders:
                return

    def rest(self) -> list[Message]:
        """What was not taken, as messages of their own."""
        left: dict[int, int] = {}
        for _, index in self._left:
            left[index] = left.get(index, 0) + 1
        return [
            message if left[index] == self._counts[index] else self._cut(index)
            for index, message in enumerate(self._messages)
            if index in left
        ]

    def _cut(self, index: int) -> Message:
        """The blocks of a message that are left."""
        message = self._messages[index]
        pieces = input_pieces(message)
        wanted = [piece for piece, of in reversed(self._left) if of == index]
        blocks: list[str] = []
        for piece, block in zip(reversed(pieces), reversed(message.blocks), strict=True):
            # From the end: of two equal blocks the first one was taken.
            if wanted and wanted[-1] == piece:
                wanted.pop()
                blocks.append(block)
        return Message.of_blocks(message.role, reversed(blocks))


class KnownInputs:
    """Nodes by their parent and keys. Mutated by `learn`."""

    def __init__(self, tree: Tree) -> None:
        self._one: dict[tuple[str | None, bytes], str] = {}
        self._several: dict[tuple[str | None, bytes], list[tuple[Keys, str]]] = {}
        for node in tree.nodes.values():
            if node.known_by:
                self.learn(node.parent, node.known_by, node.id)

    def learn(self, parent: str | None, keys: Keys, node: str) -> None:
        """`node` is what `keys` lead to below `parent`."""
        if len(keys) == 1:
            self._one[parent, keys[0]] = node
            return
        found = self._several.setdefault((parent, keys[0]), [])
        found[:] = [item for item in found if item[0] != keys] + [(keys, node)]
        found.sort(key=lambda item: -len(item[0]))

    def forget(self, parent: str | None, keys: Keys) -> None:
        """Drops what was learnt of a node that is no longer in the tree."""
        if len(keys) == 1:
            del self._one[parent, keys[0]]
            return
        found = self._several[parent, keys[0]]
        found[:] = [item for item in found if item[0] != keys]

    def exact(self, parent: str | None, keys: Keys) -> str | None:
        """The node that exactly these keys lead to."""
        if len(keys) == 1:
            return self._one.get((parent, keys[0]))
        for known, node in self._several.get((parent, keys[0]), ()):
            if known == keys:
                return node
        return None

    def step(self, parent: str | None, run: InputRun) -> str | None:
        """The child of `parent` that the run goes on to; takes its texts. The longest first."""
        for key in run.heads():
            for keys, node in self._several.get((parent, key), ()):
                if run.take(keys):
                    return node
            single = self._one.get((parent, key))
            if single is not None and run.take((key,)):
                return single
        return None
