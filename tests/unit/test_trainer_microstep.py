"""The micro-step: its invariants and its bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gyre.adapters.microsteps import decode_microstep, encode_microstep, microstep_digest
from gyre.core.microstep import ExecutionInfo, MicroStep, MicroStepError, Row, Segment
from gyre.testkit.training import make_executions, make_micro_step


def sample(seed: int = 0, count: int = 5) -> MicroStep:
    rng = random.Random(seed)
    executions = make_executions(rng, count=count, vocab_size=512)
    return make_micro_step(executions, batch="b1", index=3, normalizer=8)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_return_the_same_micro_step(seed: int) -> None:
    step = sample(seed)
    assert decode_microstep(encode_microstep(step)) == step


def test_the_same_micro_step_has_the_same_digest() -> None:
    digests = {microstep_digest(encode_microstep(sample(7))) for _ in range(3)}
    assert len(digests) == 1
    assert digests != {microstep_digest(encode_microstep(sample(8)))}


def test_placeholders_and_segments_without_versions_survive_the_bytes() -> None:
    step = sample()
    bare = replace(step.segments[0], versions=())
    placeholder = ExecutionInfo(
        execution="gone", group="g0", advantage=-1.0, num_targets=0, temperature=1.0
    )
    step = MicroStep(
        batch="b1",
        index=0,
        row_tokens=4096,
        normalizer=8,
        executions=(
            replace(step.executions[0], num_targets=len(bare.target_positions)),
            placeholder,
        ),
        rows=(Row(segments=(bare,)),),
    )
    assert decode_microstep(encode_microstep(step)) == step


@pytest.mark.parametrize("payload", [b"", b"PK\x03\x04", b"\x93NUMPY", b"hello world" * 9])
def test_other_bytes_are_no_micro_step(payload: bytes) -> None:
    with pytest.raises(MicroStepError):
        decode_microstep(payload)


def one(**changes: object) -> MicroStep:
    segment = Segment(
        execution=0,
        token_ids=(1, 2, 3, 4),
        target_positions=(1, 3),
        behaviour_logprobs=(-1.0, -1.0),
    )
    info = ExecutionInfo(execution="e", group="g", advantage=1.0, num_targets=2, temperature=1.0)
    segment_changes = {k: v for k, v in changes.items() if k in Segment.__slots__}
    info_changes = {k: v for k, v in changes.items() if k in ExecutionInfo.__slots__}
    rest = {k: v for k, v in changes.items() if k not in segment_changes | info_changes}
    values = {
        "batch": "b",
        "index": 0,
        "row_tokens": 4,
        "normalizer": 1,
        "executions": (replace(info, **info_changes),),  # type: ignore[arg-type]
        "rows": (Row(segments=(replace(segment, **segment_changes),)),),  # type: ignore[arg-type]
    }
    return MicroStep(**(values | rest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_targets": 3}, "2 of its 3 targets"),
        ({"target_positions": (0, 3)}, "outside"),
        ({"target_positions": (1, 4)}, "outside"),
        ({"target_positions": (3, 1)}, "ascend"),
        ({"behaviour_logprobs": (-1.0,)}, "behaviour logprobs"),
        ({"versions": (1,)}, "versions"),
        ({"row_tokens": 3}, "row_tokens"),
        ({"temperature": 0.0}, "temperature"),
        ({"advantage": float("nan")}, "advantage"),
        ({"normalizer": 0}, "normalizer"),
    ],
)
def test_a_broken_invariant_is_named(changes: dict[str, object], problem: str) -> None:
    one()
    with pytest.raises(MicroStepError, match=problem):
        one(**changes)
