"""Radix tree over token ids whose nodes own rows of a KV store.

A hit is *copied* into the slot of the request that asked (a row is a few hundred bytes in the
models this engine serves), so no request ever refers to a cached row and any leaf may be
evicted at any time. Least recently used leaves go first. The tree has one root per namespace
(`extra_key`, `cache_salt`), because equal tokens under different keys must not share rows.

A held prefix (`hold`) stays whatever is inserted, until `let_go` or `reset`.

Capacity: rows are charged in `_append`, released in `_evict` and `reset`. Example with 4 rows:
insert [a b c] charges 3; insert [a b d e] shares 2 and needs 2 more: one is free, so the
least recently used leaf [c] is evicted and its row reused.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens below `parent`; `rows[i]` holds the KV of `tokens[i]`. num_holds: of those
    that end with this run; whoever has children is not evicted before them."""

    tokens: list[int]
    rows: list[int]
    parent: _Node | None
    last_used: int
    children: dict[int, _Node] = field(default_factory=dict)
    num_holds: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A cached prefix of `num_tokens` tokens that is not evicted."""

    node: _Node
    num_tokens: int


class PrefixCache:
    """Store of at most `capacity` token rows; `store` is [layers, 2, K, capacity, D]."""

    def __init__(self, store: Tensor) -> None:
        self._store = store
        self.capacity = store.shape[3]
        self._free = list(range(self.capacity - 1, -1, -1))
        self._roots: dict[Hashable, _Node] = {}
        self._tick = 0

    @property
    def num_used_rows(self) -> int:
        """Rows that hold a cached token."""
        return self.capacity - len(self._free)

    def reset(self) -> None:
        """Forget everything."""
        self._roots.clear()
        self._free = list(range(self.capacity - 1, -1, -1))

    def match(self, namespace: Hashable, tokens: Sequence[int]) -> list[int]:
        """Rows of the longest cached prefix of `tokens`; marks its path as used."""
        rows: list[int] = []
        self._tick += 1
        node = self._roots.get(namespace)
        while node is not None and len(rows) < len(tokens):
            child = node.children.get(tokens[len(rows)])
            if child is None:
                break
            shared = _shared_length(child.tokens, tokens, len(rows))
            child.last_used = self._tick
            rows += child.rows[:shared]
            if shared < len(child.tokens):
                break
            node = child
        return rows

    def read(self, rows: Sequence[int], out: Tensor) -> None:
        """Copy cached rows into the first rows of `out` [layers, 2, K, T, D]."""
        out[:, :, :, : len(rows)] = self.take(rows)

    def take(self, rows: Sequence[int]) -> Tensor:
        """A copy of cached rows, [layers, 2, K, len(rows), D]."""
        return self._store.index_select(3, torch.tensor(rows, dtype=torch.long))

    def insert(self, namespace: Hashable, tokens: Sequence[int], kv: Tensor) -> None:
        """Cache `tokens` whose KV is the first rows of `kv` [layers, 2, K, T, D].

        Only the part that is not cached yet is copied. When even eviction cannot make room,
        the longest prefix that fits is kept.
        """
        self._tick += 1
        node, known = self._descend(namespace, tokens)
        self._append(node, tokens[known:], kv[:, :, :, known:])

    def extend(self, namespace: Hashable, tokens: Sequence[int], start: int, kv: Tensor) -> int:
        """Cache `tokens`, where `kv` [layers, 2, K, n, D] holds the KV of tokens[start:] alone.

        Nothing is done if less than `start` tokens are cached. Returns how many are afterwards.
        """
        self._tick += 1
        node, known = self._descend(namespace, tokens)
        if known < start:
            return known
        return known + self._append(node, tokens[known:], kv[:, :, :, known - start :])

    def hold(self, namespace: Hashable, tokens: Sequence[int]) -> Hold:
        """Keep the longest cached prefix of `tokens` until `let_go`."""
        self._tick += 1
        node, known = self._descend(namespace, tokens)
        node.num_holds += 1
        return Hold(node, known)

    def let_go(self, hold: Hold) -> None:
        """The prefix may be evicted again. Once for each hold."""
        hold.node.num_holds -= 1

    def _append(self, node: _Node, tokens: Sequence[int], kv: Tensor) -> int:
        """Cache `tokens` below `node`; row i of `kv` is that of tokens[i]. How many had room."""
        if len(tokens) > len(self._free):
            self._evict(len(tokens) - len(self._free))
        count = min(len(tokens), len(self._free))
        if count == 0:
            return 0
        rows = [self._free.pop() for _ in range(count)]
        self._store.index_copy_(3, torch.tensor(rows, dtype=torch.long), kv[:, :, :, :count])
        node.children[tokens[0]] = _Node(list(tokens[:count]), rows, node, self._tick)
        return count

    def _descend(self, namespace: Hashable, tokens: Sequence[int]) -> tuple[_Node, int]:
        """The node that ends at the longest cached prefix (split if need be), its length."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = _Node([], [], None, self._tick)
        length = 0
        while length < len(tokens):
            child = node.children.get(tokens[length])
            if child is None:
                break
            shared = _shared_length(child.tokens, tokens, length)
            child.last_used = self._tick
            length += shared
            if shared < len(child.tokens):
                return self._split(child, shared), length
            node = child
        return node, length

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut `node` after `at` tokens; return the new upper part (both stay cached)."""
        assert node.parent is not None
        upper = _Node(node.tokens[:at], node.rows[:at], node.parent, self._tick)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.rows, node.parent = node.tokens[at:], node.rows[at:], upper
        upper.children[node.tokens[0]] = node
        node.last_used -= 1  # the tail was not used by this insertion: it may be evicted
        return upper

    def _evict(self, count: int) -> None:
        """Free at least `count` rows if leaves older than this tick hold as many."""
        heap = [(leaf.last_used, id(leaf), leaf) for leaf in self._leaves()]
        heapq.heapify(heap)
        while count > 0 and heap:
            last_used, _, leaf = heapq.heappop(heap)
            if last_used == self._tick or leaf.num_holds or leaf.parent is None:
                continue
            dropped = min(count, len(leaf.rows))
            self._free += leaf.rows[len(leaf.rows) - dropped :]
            count -= dropped
            if dropped < len(leaf.rows):
                del leaf.tokens[-dropped:], leaf.rows[-dropped:]
                continue
            parent = leaf.parent
            del parent.children[leaf.tokens[0]]
            if not parent.children and parent.parent is not None:
                heapq.heappush(heap, (parent.last_used, id(parent), parent))

    def _leaves(self) -> list[_Node]:
        leaves, stack = [], list(self._roots.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if not node.children and node.parent is not None:
                leaves.append(node)
        return leaves


def _shared_length(run: Sequence[int], tokens: Sequence[int], offset: int) -> int:
    """How many leading tokens of `run` equal `tokens[offset:]`."""
    window = tokens[offset : offset + len(run)]
    if len(window) == len(run) and list(window) == run:
        return len(run)
    for index, (ours, theirs) in enumerate(zip(run, window, strict=False)):
        if ours != theirs:
            return index
    return len(window)
