"""Stream packing: whole executions, nothing lost, no row too long, the same after a restart."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core.packing import WINDOW, Bundle, PackedStep, Shape, next_step, pack_all, shape_of

ROW = 64


@st.composite
def bundles(draw: st.DrawFn) -> list[Bundle]:
    lengths = st.lists(st.integers(1, ROW), min_size=0, max_size=5).map(tuple)
    drawn = draw(st.lists(lengths, max_size=40))
    return [Bundle(execution=f"e{i}", lengths=one) for i, one in enumerate(drawn)]


shapes = st.builds(shape_of, st.just(ROW), st.integers(ROW // 2, 4 * ROW))


def stream_with_draws(
    drawn: list[Bundle], shape: Shape, group: int
) -> list[tuple[PackedStep, int]]:
    """Packing as it happens, `group` executions at a time: each micro-step, and how many executions
    were drawn when it was cut."""
    steps: list[tuple[PackedStep, int]] = []
    pending: list[Bundle] = []
    for start in range(0, max(1, len(drawn)), group):
        pending += drawn[start : start + group]
        num_drawn = min(start + group, len(drawn))
        closing = num_drawn == len(drawn)
        while (step := next_step(pending, shape, closing=closing)) is not None:
            steps.append((step, num_drawn))
            gone = set(step.executions)
            pending = [b for b in pending if b.execution not in gone]
    return steps


def stream(drawn: list[Bundle], shape: Shape, group: int) -> list[PackedStep]:
    return [step for step, _ in stream_with_draws(drawn, shape, group)]


@given(bundles(), shapes, st.integers(1, 8))
def test_all_rows_of_an_execution_are_in_one_micro_step(
    drawn: list[Bundle], shape: Shape, group: int
) -> None:
    steps = stream(drawn, shape, group)
    homes = Counter(execution for step in steps for execution in step.executions)
    assert homes == Counter(b.execution for b in drawn if b.lengths)
    for step in steps:
        inside = {placement.execution for row in step.rows for placement in row}
        assert inside == set(step.executions)


@given(bundles(), shapes, st.integers(1, 8))
def test_every_block_is_placed_once(drawn: list[Bundle], shape: Shape, group: int) -> None:
    placed = Counter(
        (placement.execution, placement.block)
        for step in stream(drawn, shape, group)
        for row in step.rows
        for placement in row
    )
    assert placed == Counter((b.execution, i) for b in drawn for i in range(len(b.lengths)))


@given(bundles(), shapes, st.integers(1, 8))
def test_rows_keep_their_capacity_and_steps_their_number_of_rows(
    drawn: list[Bundle], shape: Shape, group: int
) -> None:
    lengths = {b.execution: b.lengths for b in drawn}
    for step in stream(drawn, shape, group):
        used = [sum(lengths[p.execution][p.block] for p in row) for row in step.rows]
        assert max(used) == step.row_tokens <= shape.longest_tokens
        assert sum(used) == step.num_tokens
        largest = max(step.executions, key=lambda e: sum(lengths[e]))
        assert len(step.rows) <= max(shape.num_rows, len(lengths[largest]))
        if max(lengths[largest]) <= shape.row_tokens:
            assert step.row_tokens <= shape.row_tokens


@given(bundles(), shapes, st.integers(1, 8))
def test_packing_goes_on_from_what_was_drawn_and_not_emitted(
    drawn: list[Bundle], shape: Shape, group: int
) -> None:
    """A restart knows what was drawn and what was emitted, nothing else: it packs the same."""
    emitted: set[str] = set()
    for step, num_drawn in stream_with_draws(drawn, shape, group):
        in_log = [b for b in drawn[:num_drawn] if b.execution not in emitted]
        assert next_step(in_log, shape, closing=num_drawn == len(drawn)) == step
        emitted.update(step.executions)


@given(bundles(), shapes)
def test_packing_is_a_function_of_its_input(drawn: list[Bundle], shape: Shape) -> None:
    assert list(pack_all(drawn, shape)) == list(pack_all(drawn, shape))


@pytest.mark.parametrize("longest", [2, ROW])
def test_packing_a_whole_list_is_packing_step_by_step_what_is_left(longest: int) -> None:
    rng = random.Random(0)
    pending = [
        Bundle(
            execution=f"e{number}",
            lengths=tuple(rng.randint(1, longest) for _ in range(rng.randint(0, 4))),
        )
        for number in range(5 * WINDOW)
    ]
    shape = shape_of(ROW, 3 * ROW)
    for step in pack_all(pending, shape):
        assert step == next_step(pending, shape, closing=True)
        pending = [bundle for bundle in pending if bundle.execution not in step.executions]
    assert next_step(pending, shape, closing=True) is None


def test_more_is_asked_for_while_little_is_in_hand() -> None:
    shape = shape_of(100, 200)
    assert next_step([Bundle(execution="a", lengths=(60,))], shape, closing=False) is None
    full = [Bundle(execution=name, lengths=(100,)) for name in "ab"]
    step = next_step(full, shape, closing=False)
    assert step is not None
    assert step.executions == ("a", "b")
    assert step.fill == 1.0


def test_executions_however_short_are_streamed_into_full_micro_steps() -> None:
    """Here one micro-step holds more of them than are looked at when they are long."""
    shape = shape_of(4 * WINDOW, 4 * WINDOW)
    drawn = [Bundle(execution=f"e{number}", lengths=(1, 1)) for number in range(8 * WINDOW)]
    steps = stream_with_draws(drawn, shape, 16)
    assert [step.fill for step, _ in steps] == [1.0] * 4
    assert [num_drawn for _, num_drawn in steps] == [2 * WINDOW * n for n in range(1, 5)]


def test_an_execution_of_many_rows_widens_its_own_micro_step() -> None:
    shape = shape_of(100, 100)
    drawn = [
        Bundle(execution="big", lengths=(80, 80, 80)),
        Bundle(execution="small", lengths=(20, 15)),
    ]
    (step,) = pack_all(drawn, shape)
    assert step.executions == ("big", "small")
    assert (len(step.rows), step.row_tokens) == (3, 100)


def test_a_micro_step_smaller_than_a_row_is_one_short_row() -> None:
    shape = shape_of(100, 40)
    steps = list(pack_all([Bundle(execution=n, lengths=(20,)) for n in "abcd"], shape))
    assert [(step.executions, step.row_tokens) for step in steps] == [
        (("a", "b"), 40),
        (("c", "d"), 40),
    ]
    (long,) = pack_all([Bundle(execution="long", lengths=(90,))], shape)
    assert long.row_tokens == 90
