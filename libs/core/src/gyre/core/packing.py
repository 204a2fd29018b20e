"""Stream packing: whole executions into rows, rows into micro-steps, as groups come in.

`next_step` looks at what is in hand and either cuts one micro-step out of it or asks for more. It
knows nothing but the list it is given, in the order the executions were drawn: packing again after
a restart, from what was drawn and not yet emitted, gives the same micro-steps.

Invariants (tests/properties/test_packing_law.py):
- all rows of an execution are in one micro-step, which s_i and m_i of eq. (5) need;
- every block is placed once; nothing is lost or doubled, cut or reordered inside;
- no row passes its capacity; a micro-step passes its number of rows only for an execution that
  needs more on its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec import Struct

# A micro-step as full as this is cut at once; waiting or trying for a better fit gains nothing.
FULL_ENOUGH = 0.985
# Ways to fill one that are tried until one is full enough. Each leaves out another of the large
# executions, whose size the others may not complete. Eight bring four rows from 98.2 to 98.6 %.
MOST_TRIES = 8
# Tokens in hand, in micro-steps, at which one is cut whatever its fill. Two: with one micro-step's
# worth kept back there is always something small to fill the gaps, and no cell waits for more than
# one further group.
IN_HAND_STEPS = 2
# Executions looked at for one micro-step, so that its cost does not grow with the backlog: so many,
# and further ones until they hold IN_HAND_STEPS micro-steps, which takes thousands of short ones.
# More than a group of the paper's size brings at once, several times over.
WINDOW = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One execution to pack. lengths: tokens of each of its blocks (`gyre.core.blocks`), all > 0:
    a tree of admitted paths counts its unique tokens."""

    execution: str
    lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a micro-step offers: `num_rows` rows of `row_tokens` tokens. longest_tokens: capacity of
    the rows of an execution that does not fit otherwise (the longest trainable path)."""

    num_rows: int
    row_tokens: int
    longest_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.row_tokens


class Placement(Struct, frozen=True, kw_only=True, gc=False):
    """Block number `block` of `execution` lies here."""

    execution: str
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """executions: in the order they were drawn. rows: placements, one behind the other.

    row_tokens: tokens of the longest row; the others are padded to it.
    """

    executions: tuple[str, ...]
    rows: tuple[tuple[Placement, ...], ...]
    row_tokens: int
    num_tokens: int

    @property
    def fill(self) -> float:
        """Share of the rows' tokens that is not padding."""
        return self.num_tokens / (len(self.rows) * self.row_tokens)


def shape_of(row_tokens: int, tokens_per_micro_step: int) -> Shape:
    """Rows for the job's admission settings. A micro-step smaller than a row is one short row."""
    return Shape(
        num_rows=max(1, tokens_per_micro_step // row_tokens),
        row_tokens=min(row_tokens, tokens_per_micro_step),
        longest_tokens=row_tokens,
    )


def next_step(pending: Sequence[Bundle], shape: Shape, *, closing: bool) -> PackedStep | None:
    """The next micro-step of what is in hand, or None: more groups should be drawn first.

    pending: drawn, not yet emitted, in drawing order; the first of them (WINDOW) are looked at.
    closing: no more will come. Raises ValueError for a block longer than any row.
    """
    window = _window([], (bundle for bundle in pending if bundle.lengths), shape)
    if not window:
        return None
    return _step_of(window, shape, closing=closing)


def pack_all(bundles: Iterable[Bundle], shape: Shape) -> Iterator[PackedStep]:
    """All micro-steps of a finished list of executions, in order: what `next_step` gives when it is
    asked again and again with what is left. O(executions looked at) for each."""
    waiting = (bundle for bundle in bundles if bundle.lengths)
    window: list[Bundle] = []
    while window := _window(window, waiting, shape):
        step = _step_of(window, shape, closing=True)
        assert step is not None, "a closing stream keeps nothing in hand"
        yield step
        gone = set(step.executions)
        window = [bundle for bundle in window if bundle.execution not in gone]


def _window(held: Sequence[Bundle], waiting: Iterator[Bundle], shape: Shape) -> list[Bundle]:
    """`held` and what it takes of `waiting` to choose a micro-step from."""
    window = [*held, *islice(waiting, max(0, WINDOW - len(held)))]
    lacking = IN_HAND_STEPS * shape.num_tokens - _in_hand(window)
    while lacking > 0 and (bundle := next(waiting, None)) is not None:
        window.append(bundle)
        lacking -= bundle.num_tokens
    return window


def _in_hand(window: Iterable[Bundle]) -> int:
    return sum([sum(bundle.lengths) for bundle in window])


def _step_of(window: Sequence[Bundle], shape: Shape, *, closing: bool) -> PackedStep | None:
    in_hand = 0 if closing else _in_hand(window)
    full = FULL_ENOUGH * shape.num_tokens
    if not closing and in_hand < full:
        return None
    step = _packed(window, _fill_rows(window, shape))
    plenty = in_hand >= IN_HAND_STEPS * shape.num_tokens
    return step if closing or plenty or step.num_tokens >= full else None


class _Rows:
    """Rows being filled, best fit by free space. Mutated by `add` alone: all or nothing."""

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self.rows: list[list[Placement]] = [[] for _ in range(num_rows)]
        self.capacity = num_rows * row_tokens
        self.num_bundles = 0
        # (free tokens, row), ascending: the first row that holds a length is the tightest.
        self._free: list[tuple[int, int]] = [(row_tokens, row) for row in range(num_rows)]

    def copy(self) -> _Rows:
        other = _Rows(0, 0)
        other.rows = [list(row) for row in self.rows]
        other.capacity, other.num_bundles = self.capacity, self.num_bundles
        other._free = list(self._free)
        return other

    def add(self, bundle: Bundle) -> bool:
        """Places every block of `bundle`, longest first, or none."""
        free = list(self._free)
        places: list[tuple[int, int]] = []
        for block in _longest_first(bundle.lengths):
            length = bundle.lengths[block]
            at = bisect_left(free, (length, -1))
            if at == len(free):
                return False
            room, row = free.pop(at)
            insort(free, (room - length, row))
            places.append((row, block))
        self._free = free
        self.num_bundles += 1
        for row, block in places:
            placement = Placement(execution=bundle.execution, block=block)
            self.rows[row].append(placement)
        return True

    @property
    def most_free(self) -> int:
        return self._free[-1][0]

    @property
    def fill(self) -> float:
        return 1 - sum(free for free, _ in self._free) / self.capacity


def _fill_rows(window: Sequence[Bundle], shape: Shape) -> list[list[Placement]]:
    """The largest execution and what completes it best: the fullest of MOST_TRIES, or the first
    that is full enough or holds all."""
    largest, *smaller = sorted(window, key=lambda bundle: -sum(bundle.lengths))
    others = [(bundle, min(bundle.lengths)) for bundle in smaller]
    start = _rows_for(largest, shape)
    best = _filled(start, others)
    for left_out in range(min(MOST_TRIES - 1, len(others))):
        if best.fill >= FULL_ENOUGH or best.num_bundles == len(window):
            break
        another = _filled(start, [*others[:left_out], *others[left_out + 1 :]])
        if another.fill > best.fill:
            best = another
    return [row for row in best.rows if row]


def _filled(start: _Rows, by_size: Sequence[tuple[Bundle, int]]) -> _Rows:
    """Largest executions first; each smaller one goes where it fits tightest. by_size: with the
    length of the shortest block of each."""
    rows = start.copy()
    most_free = rows.most_free
    for bundle, shortest in by_size:
        if shortest <= most_free and rows.add(bundle):
            most_free = rows.most_free
    return rows


def _rows_for(largest: Bundle, shape: Shape) -> _Rows:
    """Rows that hold at least `largest`: the shape's, or as many and as long as it needs."""
    rows = _Rows(shape.num_rows, shape.row_tokens)
    if rows.add(largest):
        return rows
    row_tokens = shape.row_tokens
    if max(largest.lengths) > row_tokens:
        row_tokens = shape.longest_tokens
    for num_rows in range(shape.num_rows, len(largest.lengths) + 1):
        rows = _Rows(num_rows, row_tokens)
        if rows.add(largest):
            return rows
    raise ValueError(
        f"execution {largest.execution} has a block of {max(largest.lengths)} tokens, "
        f"a row holds {shape.longest_tokens}"
    )


def _packed(window: Sequence[Bundle], rows: Sequence[Sequence[Placement]]) -> PackedStep:
    lengths = {bundle.execution: bundle.lengths for bundle in window}
    used = [sum(lengths[p.execution][p.block] for p in row) for row in rows]
    inside = {placement.execution for row in rows for placement in row}
    return PackedStep(
        executions=tuple(b.execution for b in window if b.execution in inside),
        rows=tuple(tuple(row) for row in rows),
        row_tokens=max(used),
        num_tokens=sum(used),
    )


def _longest_first(lengths: Sequence[int]) -> Sequence[int]:
    if len(lengths) == 1:  # most executions
        return (0,)
    return sorted(range(len(lengths)), key=lambda place: -lengths[place])
