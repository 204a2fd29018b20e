"""From a tree to samples: which tokens are targets, with which logprobs and versions."""

from __future__ import annotations

import random

import pytest

from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.core.samples import ExecutionSamples, SampleError, draw_samples
from gyre.core.tree import Tree, fold
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


def test_a_sample_is_the_exact_path_and_its_targets_are_what_was_sampled() -> None:
    calls = caller()
    last = calls.call(calls.call(None))
    tree = fold(calls.events)
    (sample,) = draw(tree).samples
    assert sample.token_ids == tree.path_tokens(last)
    first, second = (event for event in calls.events if isinstance(event, CallRecorded))
    targets = [sample.token_ids[place] for place in sample.target_positions]
    assert targets == [*first.output_ids, *second.output_ids]
    assert list(sample.logprobs) == [*first.output_logprobs, *second.output_logprobs]
    assert list(sample.versions) == [0] * len(targets)


def test_an_aborted_call_or_a_title_below_the_last_turn_does_not_hide_it() -> None:
    calls = caller()
    last = calls.call(None)
    calls.call(last, outcome="aborted")
    calls.call(last, role="other")
    tree = fold(calls.events)
    (sample,) = draw(tree).samples
    assert sample.token_ids == tree.path_tokens(last)


def test_an_undelivered_call_is_no_target() -> None:
    calls = caller()
    calls.call(None)
    calls.events.append(CallUndelivered(call="x-c0", execution="x", reason="gone"))
    assert draw(fold(calls.events)) == ExecutionSamples(
        samples=(), num_targets=0, num_paths_too_long=0, temperature=1.0
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
    assert (drawn.num_paths_too_long, len(drawn.samples), drawn.num_targets) == (1, 1, 16)


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
    with pytest.raises(SampleError, match=r"temperatures \[1.0, 2.0\]"):
        draw(fold([event, hot]))
    broken = event.model_copy(update={"output_logprobs": (float("-inf"),) * 8})
    with pytest.raises(SampleError, match="not finite"):
        draw(fold([broken]))
    rootless = event.model_copy(update={"segments": ()})
    with pytest.raises(SampleError, match="no context"):
        draw(fold([rootless]))


def test_versions_are_left_out_when_spans_do_not_cover_the_tokens() -> None:
    calls = caller()
    calls.call(None)
    (event,) = calls.events
    (sample,) = draw(fold([event.model_copy(update={"spans": ()})])).samples
    assert len(sample.versions) == 0
