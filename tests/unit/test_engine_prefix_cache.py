"""The engine's prefix cache against a plain model of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.engine.local.prefix_cache import PrefixCache

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
OPERATIONS = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), TOKENS), max_size=40)


def rows_of(namespace: str, tokens: Sequence[int]) -> torch.Tensor:
    """KV [1, 2, 1, T, 1] whose row i depends on the namespace and all of tokens[:i + 1], as
    real rows do: a wrong hit would read a wrong number."""
    values, state = [], float(ord(namespace))
    for token in tokens:
        state = (state * 31 + token + 1) % 65_521
        values.append(state)
    return torch.tensor(values).view(1, 1, 1, -1, 1).repeat(1, 2, 1, 1, 1)


def cached(cache: PrefixCache, namespace: str, tokens: Sequence[int]) -> int:
    """Length of the hit, after checking every row of it."""
    rows = cache.match(namespace, tokens)
    out = torch.zeros(1, 2, 1, max(len(tokens), 1), 1)
    cache.read(rows, out)
    expected = rows_of(namespace, tokens)[:, :, :, : len(rows)]
    assert torch.equal(out[:, :, :, : len(rows)], expected)
    return len(rows)


@given(OPERATIONS)
def test_with_room_a_hit_is_the_longest_prefix_ever_inserted(
    operations: list[tuple[bool, str, list[int]]],
) -> None:
    cache = PrefixCache(torch.zeros(1, 2, 1, 600, 1))
    inserted: dict[str, list[list[int]]] = {"a": [], "b": []}
    for insert, namespace, tokens in operations:
        longest = 0
        for other in inserted[namespace]:
            shared = next(
                (i for i, (x, y) in enumerate(zip(other, tokens, strict=False)) if x != y),
                min(len(other), len(tokens)),
            )
            longest = max(longest, shared)
        assert cached(cache, namespace, tokens) == longest
        if insert:
            cache.insert(namespace, tokens, rows_of(namespace, tokens))
            inserted[namespace].append(tokens)
            assert cached(cache, namespace, tokens) == len(tokens)


@given(OPERATIONS, st.integers(1, 20))
def test_a_full_cache_never_exceeds_its_rows_nor_answers_wrongly(
    operations: list[tuple[bool, str, list[int]]], capacity: int
) -> None:
    cache = PrefixCache(torch.zeros(1, 2, 1, capacity, 1))
    for insert, namespace, tokens in operations:
        if insert:
            cache.insert(namespace, tokens, rows_of(namespace, tokens))
            assert cached(cache, namespace, tokens) == min(len(tokens), capacity)
        else:
            cached(cache, namespace, tokens)
        assert 0 <= cache.num_used_rows <= capacity
    cache.reset()
    assert cache.num_used_rows == 0
    assert cached(cache, "a", [0, 1]) == 0


def test_the_least_recently_used_prefix_goes_first() -> None:
    cache = PrefixCache(torch.zeros(1, 2, 1, 6, 1))
    for tokens in ([1, 1], [2, 2], [3, 3]):
        cache.insert("a", tokens, rows_of("a", tokens))
    cache.match("a", [1, 1])
    cache.insert("a", [4, 4], rows_of("a", [4, 4]))
    assert [cached(cache, "a", [i, i]) for i in (1, 2, 3, 4)] == [2, 0, 2, 2]
