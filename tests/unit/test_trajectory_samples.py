"""From a tree to samples: which tokens are targets, with which logprobs and versions."""

from __future__ import annotations

import random

import pytest

from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.core.microstep import NO_EDGE
from gyre.core.samples import ExecutionSamples, SampleError
from gyre.core.tree import Tree, fold
from gyre.testkit.draws import draw_samples
from gyre.testkit.trajectory_world import Caller, calls_of


def draw(tree: Tree, *, attempt: int = 1, row_tokens: int = 10_000) -> ExecutionSamples:
    return draw_samples(
        tree,
        attempt=attempt,
        row_tokens=row_tokens,
        max_trajectories=5,
        rng=random.Random(0),
    )


def caller() -> Caller:
    return Caller("x", random.Random(0))


def test_a_block_is_the_exact_path_and_its_targets_are_what_was_sampled() -> None:
    calls = caller()
    last = calls.call(calls.call(None))
    tree = fold(calls.events)
    (block,) = draw(tree).blocks
    assert block.token_ids == tree.path_tokens(last)
    first, second = (event for event in calls.events if isinstance(event, CallRecorded))
    targets = [block.token_ids[place] for place in block.target_positions]
    assert targets == [*first.output_ids, *second.output_ids]
    assert list(block.logprobs) == [*first.output_logprobs, *second.output_logprobs]
    assert list(block.versions) == [0] * len(targets)


def test_paths_of_one_history_are_one_block_and_roots_are_blocks_of_their_own() -> None:
    calls = caller()
    first = calls.call(None)
    left, right = calls.call(first), calls.call(first, role="sub-agent")
    alone = calls.call(None, role="sub-agent")
    tree = fold(calls.events)
    drawn = draw(tree)
    shared = tree.num_path_tokens(first)
    ends = [tree.num_path_tokens(node) for node in (left, right, alone)]
    assert [len(block.token_ids) for block in drawn.blocks] == [ends[0] + ends[1] - shared, ends[2]]
    assert [(e.stop - e.start, e.parent) for e in drawn.blocks[0].edges] == [
        (shared, NO_EDGE),
        (ends[0] - shared, 0),
        (ends[1] - shared, 0),
    ]
    assert (drawn.num_paths, drawn.num_targets) == (3, 4 * 8)


def test_a_tree_larger_than_a_row_is_cut_between_paths_and_repeats_what_they_share() -> None:
    calls = caller()
    first = calls.call(None)  # 23 tokens
    for _ in range(3):
        calls.call(first)  # 23 more each
    drawn = draw(fold(calls.events), row_tokens=69)
    assert [len(block.token_ids) for block in drawn.blocks] == [69, 46]
    assert [block.num_repeated_tokens for block in drawn.blocks] == [0, 23]
    assert [len(block.target_positions) for block in drawn.blocks] == [24, 8]


def test_an_aborted_call_or_a_title_below_the_last_turn_does_not_hide_it() -> None:
    calls = caller()
    last = calls.call(None)
    calls.call(last, outcome="aborted")
    calls.call(last, role="other")
    tree = fold(calls.events)
    (block,) = draw(tree).blocks
    assert block.token_ids == tree.path_tokens(last)


def test_an_undelivered_call_is_no_target() -> None:
    calls = caller()
    calls.call(None)
    calls.events.append(CallUndelivered(call="x-c0", execution="x", reason="gone"))
    assert draw(fold(calls.events)) == ExecutionSamples(
        blocks=(), num_targets=0, num_paths=0, num_paths_too_long=0, temperature=1.0
    )


def test_only_the_scored_attempt_is_trained() -> None:
    tree = fold(calls_of("x", 3, attempt=2))
    assert draw(tree, attempt=2).num_targets == sum(
        len(node.token_ids) for node in tree.targets(2) if node.sampled.request_role != "other"
    )
    assert draw(tree, attempt=1).num_targets == sum(len(n.token_ids) for n in tree.targets(1))


def test_a_path_that_is_too_long_is_dropped_before_admission_and_counted() -> None:
    calls = caller()
    first = calls.call(None)  # 12 + 3 + 8 tokens
    calls.call(first, num_input=5)  # 39
    calls.call(first, num_input=50)  # 84
    drawn = draw(fold(calls.events), row_tokens=40)
    assert (drawn.num_paths_too_long, drawn.num_paths, drawn.num_targets) == (1, 1, 16)


def test_records_that_cannot_be_trained_are_named() -> None:
    calls = caller()
    calls.call(None)
    (event,) = calls.events
    assert isinstance(event, CallRecorded)
    hot = event.model_copy(
        update={
            "call": "hot",
            "node": "hot",
            "parent": None,
            "temperature": 2.0,
        }
    )
    with pytest.raises(SampleError, match=r"temperature 1\.0: call x-c0; 2\.0: call hot"):
        draw(fold([event, hot]))
    broken = event.model_copy(update={"output_logprobs": (float("-inf"),) * 8})
    with pytest.raises(SampleError, match="not finite"):
        draw(fold([broken]))
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SampleError, match=r"call x-c0: .* is no temperature"):
            draw(fold([event.model_copy(update={"temperature": value})]))
    rootless = event.model_copy(update={"segments": ()})
    with pytest.raises(SampleError, match="no context"):
        draw(fold([rootless]))


def test_versions_are_left_out_when_spans_do_not_cover_the_tokens() -> None:
    calls = caller()
    calls.call(None)
    (event,) = calls.events
    [span] = event.spans
    beyond = span.model_copy(update={"end": 10**15})
    for spans in ((), (beyond,), (beyond.model_copy(update={"start": 9}),)):
        (block,) = draw(fold([event.model_copy(update={"spans": spans})])).blocks
        assert len(block.versions) == 0
