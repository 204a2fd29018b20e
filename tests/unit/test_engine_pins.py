"""Held prefixes of the engine's cache, and the blocks in which they travel."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.engine.local.blocks import (
    BLOCK_TOKENS,
    Header,
    block_bounds,
    block_bytes,
    decode_block,
    encode_block,
    read_header,
)
from gyre.cell_agent.engine.local.errors import TransferError
from gyre.cell_agent.engine.local.prefix_cache import Hold, PrefixCache

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
OPERATIONS = st.lists(st.tuples(st.sampled_from(["insert", "hold", "let_go"]), TOKENS), max_size=40)


def rows_of(tokens: Sequence[int]) -> torch.Tensor:
    """KV [1, 2, 1, T, 1] whose row i depends on all of tokens[:i + 1], as real rows do."""
    values, state = [], 7.0
    for token in tokens:
        state = (state * 31 + token + 1) % 65_521
        values.append(state)
    return torch.tensor(values).view(1, 1, 1, -1, 1).repeat(1, 2, 1, 1, 1)


def new_cache(capacity: int) -> PrefixCache:
    return PrefixCache(torch.zeros(1, 2, 1, capacity, 1))


def cached(cache: PrefixCache, tokens: Sequence[int]) -> int:
    """Length of the hit, after checking every row of it."""
    rows = cache.match("a", tokens)
    assert torch.equal(cache.take(rows), rows_of(tokens)[:, :, :, : len(rows)])
    return len(rows)


@given(OPERATIONS, st.integers(1, 20))
def test_what_is_held_stays_whatever_is_inserted(
    operations: list[tuple[str, list[int]]], capacity: int
) -> None:
    cache = new_cache(capacity)
    held: list[tuple[Hold, list[int]]] = []
    for kind, tokens in operations:
        if kind == "insert":
            cache.insert("a", tokens, rows_of(tokens))
        elif kind == "hold":
            known = cached(cache, tokens)
            hold = cache.hold("a", tokens)
            assert hold.num_tokens == known
            held.append((hold, tokens[: hold.num_tokens]))
        elif held:
            cache.let_go(held.pop()[0])
        for hold, prefix in held:
            assert cached(cache, prefix) == hold.num_tokens
        assert 0 <= cache.num_used_rows <= capacity
    for hold, _ in held:
        cache.let_go(hold)
    others = list(range(capacity))
    cache.insert("b", others, rows_of(others))
    assert len(cache.match("b", others)) == capacity


@given(TOKENS, TOKENS, st.integers(0, 12), st.integers(1, 20))
def test_extending_is_inserting_without_the_rows_that_are_there(
    known: list[int], tokens: list[int], start: int, capacity: int
) -> None:
    inserted, extended = new_cache(capacity), new_cache(capacity)
    for cache in (inserted, extended):
        cache.insert("a", known, rows_of(known))
    before = cached(extended, tokens)
    start = min(start, len(tokens))
    after = extended.extend("a", tokens, start, rows_of(tokens)[:, :, :, start:])
    if before < start:
        assert after == cached(extended, tokens) == before
    else:
        inserted.insert("a", tokens, rows_of(tokens))
        assert after == cached(extended, tokens) == cached(inserted, tokens)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_blocks_cover_their_range_without_a_hole(start: int, length: int) -> None:
    bounds = list(block_bounds(start, start + length))
    positions = [index for first, last in bounds for index in range(first, last)]
    assert positions == list(range(start, start + length))
    assert all(0 < last - first <= BLOCK_TOKENS for first, last in bounds)


def test_a_block_arrives_as_it_was_sent_or_not_at_all() -> None:
    rows = torch.randn(2, 2, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    data = encode_block(rows)
    assert len(data) == block_bytes((2, 3, 4), 5)
    assert torch.equal(decode_block(data, (2, 3, 4)), rows)
    spoilt = bytearray(data)
    spoilt[-1] ^= 1
    with pytest.raises(TransferError):
        decode_block(bytes(spoilt), (2, 3, 4))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"shape": [1, 2]}', '{"shape": "x", "version": 1}', "\udcff"]
)
def test_a_header_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TransferError):
        read_header(text)


def test_a_header_survives_its_journey() -> None:
    header = Header(version="0.3", shape=(2, 3, 4), start=5, end=9, tokens="ab")
    assert read_header(header.to_json()) == header
