"""The micro-step: its invariants and its bytes."""

from __future__ import annotations

import contextlib
import io
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from gyre.adapters.blobs import digest_of
from gyre.adapters.microsteps import decode_microstep, encode_microstep
from gyre.core.microstep import (
    NO_EDGE,
    Edge,
    ExecutionInfo,
    MicroStep,
    MicroStepError,
    Row,
    TreeBlock,
)
from gyre.testkit.block_trees import path_tokens
from gyre.testkit.training import make_executions, make_micro_step


def sample(seed: int = 0, count: int = 5, *, trees: bool = True) -> MicroStep:
    rng = random.Random(seed)
    executions = make_executions(rng, count=count, vocab_size=512)
    return make_micro_step(executions, batch="b1", index=3, normalizer=8, trees=trees)


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_return_the_same_micro_step(seed: int, trees: bool) -> None:
    step = sample(seed, trees=trees)
    assert decode_microstep(encode_microstep(step)) == step


def test_the_same_micro_step_has_the_same_digest() -> None:
    digests = {digest_of(encode_microstep(sample(7))) for _ in range(3)}
    assert len(digests) == 1
    assert digests != {digest_of(encode_microstep(sample(8)))}


def test_placeholders_and_blocks_without_versions_survive_the_bytes() -> None:
    step = sample()
    bare = replace(step.blocks[0], versions=())
    placeholder = ExecutionInfo(
        execution="gone", group="g0", advantage=-1.0, num_targets=0, temperature=1.0
    )
    step = MicroStep(
        batch="b1",
        index=0,
        row_tokens=4096,
        window_rows=3,
        normalizer=8,
        executions=(
            replace(step.executions[0], num_targets=len(bare.target_positions)),
            placeholder,
        ),
        rows=(Row(blocks=(bare,)),),
    )
    assert decode_microstep(encode_microstep(step)) == step


def flat_bytes(executions: list[dict[str, object]]) -> bytes:
    """Schema 1: rows of segments, each one path."""
    meta = {
        "schema": 1,
        "batch": "b",
        "index": 2,
        "row_tokens": 6,
        "normalizer": 4,
        "executions": executions,
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
        row_segments=np.array([2, 1]),
        segment_execution=np.array([0, 0, 1]),
        segment_tokens=np.array([3, 2, 4]),
        segment_targets=np.array([1, 1, 2]),
        segment_versioned=np.array([True, False, True]),
        token_ids=np.array([7, 8, 9, 7, 6, 5, 4, 3, 2]),
        target_positions=np.array([2, 1, 1, 3]),
        behaviour_logprobs=np.array([-1.0, -2.0, -3.0, -4.0]),
        versions=np.array([5, 6, 7]),
    )
    return buffer.getvalue()


def test_bytes_of_flat_rows_are_blocks_of_one_edge_in_one_forward_unit() -> None:
    infos: list[dict[str, object]] = [
        {"execution": name, "group": "g", "advantage": 1.0, "num_targets": 2, "temperature": 0.7}
        for name in ("e0", "e1")
    ]
    step = decode_microstep(flat_bytes(infos))
    assert (step.index, step.row_tokens, step.window_rows) == (2, 6, 2)
    first, second, third = step.blocks
    assert first == TreeBlock(
        execution=0,
        token_ids=(7, 8, 9),
        edges=(Edge(start=0, stop=3, parent=NO_EDGE),),
        target_positions=(2,),
        behaviour_logprobs=(-1.0,),
        versions=(5,),
    )
    assert (second.token_ids, second.versions) == ((7, 6), ())
    assert (third.target_positions, third.versions) == ((1, 3), (6, 7))
    assert [len(row.blocks) for row in step.rows] == [2, 1]


def with_schema(step: MicroStep, schema: int) -> dict[str, Any]:
    """The tensors of its bytes, which say that they are of another schema."""
    arrays = load(encode_microstep(step))
    meta = json.loads(arrays["meta"].tobytes())
    text = json.dumps({**meta, "schema": schema})
    return {**arrays, "meta": np.frombuffer(text.encode(), dtype=np.uint8)}


@pytest.mark.parametrize("seed", range(3))
def test_zipped_bytes_of_the_schema_before_are_read(seed: int) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **with_schema(sample(seed), 2))
    assert decode_microstep(buffer.getvalue()) == sample(seed)


def test_a_later_schema_is_refused_by_its_number() -> None:
    with pytest.raises(MicroStepError, match="schema 4"):
        decode_microstep(save(with_schema(sample(), 4)))


@given(data=st.data())
def test_altered_bytes_are_another_micro_step_or_none(data: st.DataObject) -> None:
    """No altered byte ends a reader with anything but MicroStepError."""
    payload = bytearray(encode_microstep(sample(1, 1)))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(MicroStepError):
        assert isinstance(decode_microstep(bytes(payload)), MicroStep)


@pytest.mark.parametrize("payload", [b"", b"PK\x03\x04", b"\x93NUMPY", b"hello world" * 9])
def test_other_bytes_are_no_micro_step(payload: bytes) -> None:
    with pytest.raises(MicroStepError):
        decode_microstep(payload)


# Paths 1 2 3, 1 2 4 5 and 1 2 4 6, then 7 8 on a root of its own.
FOREST = TreeBlock(
    execution=0,
    token_ids=(1, 2, 3, 4, 5, 6, 7, 8),
    edges=tuple(
        Edge(start=start, stop=stop, parent=parent)
        for start, stop, parent in [
            (0, 2, NO_EDGE),
            (2, 3, 0),
            (3, 4, 0),
            (4, 5, 2),
            (5, 6, 2),
            (6, 8, NO_EDGE),
        ]
    ),
    target_positions=(2, 3, 5, 7),
    behaviour_logprobs=(-1.0, -1.0, -1.0, -1.0),
)


def test_a_block_says_where_its_paths_are() -> None:
    assert FOREST.depths == (0, 2, 2, 3, 3, 0)
    assert path_tokens(FOREST) == [(1, 2, 3), (1, 2, 4, 5), (1, 2, 4, 6), (7, 8)]


def one(**changes: object) -> MicroStep:
    info = ExecutionInfo(execution="e", group="g", advantage=1.0, num_targets=4, temperature=1.0)
    block_changes = {k: v for k, v in changes.items() if k in TreeBlock.__slots__}
    info_changes = {k: v for k, v in changes.items() if k in ExecutionInfo.__slots__}
    rest = {k: v for k, v in changes.items() if k not in block_changes | info_changes}
    values = {
        "batch": "b",
        "index": 0,
        "row_tokens": 8,
        "window_rows": 1,
        "normalizer": 1,
        "executions": (replace(info, **info_changes),),  # type: ignore[arg-type]
        "rows": (Row(blocks=(replace(FOREST, **block_changes),)),),  # type: ignore[arg-type]
    }
    return MicroStep(**(values | rest))  # type: ignore[arg-type]


def test_a_micro_step_counts_what_it_carries_and_what_flat_rows_would() -> None:
    step = one()
    assert (step.num_tokens, step.num_paths, step.num_path_tokens) == (8, 4, 3 + 4 + 4 + 2)
    assert one(num_repeated_tokens=2).num_repeated_tokens == 2


def edges(*changed: tuple[int, int, int]) -> tuple[Edge, ...]:
    """FOREST's with the first ones changed."""
    first = tuple(Edge(start=start, stop=stop, parent=up) for start, stop, up in changed)
    return first + FOREST.edges[len(first) :]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_targets": 3}, "4 of its 3 targets"),
        ({"target_positions": (0, 2, 5, 7)}, "opens a root"),
        ({"target_positions": (2, 3, 5, 6)}, "opens a root"),
        ({"target_positions": (2, 3, 5, 8)}, "outside"),
        ({"target_positions": (-1, 3, 5, 7)}, "outside"),
        ({"target_positions": (3, 2, 5, 7)}, "ascend"),
        ({"target_positions": (3, 3, 5, 7)}, "ascend"),
        ({"behaviour_logprobs": (-1.0,)}, "behaviour logprobs"),
        ({"versions": (1,)}, "versions"),
        ({"num_repeated_tokens": 3}, "repeated part"),
        ({"num_repeated_tokens": 9}, "called repeated"),
        ({"edges": edges((0, 2, NO_EDGE), (3, 4, 0))}, "edge 1 is 3..4, the one before it ends"),
        ({"edges": edges((0, 2, NO_EDGE), (2, 2, 0))}, "edge 1 is 2..2"),
        ({"edges": edges((0, 2, NO_EDGE), (2, 3, 1))}, "edge 1 below edge 1"),
        ({"edges": edges((0, 2, 0))}, "edge 0 below edge 0"),
        ({"edges": (*FOREST.edges[:4], Edge(start=5, stop=6, parent=1))}, "depth-first"),
        ({"edges": FOREST.edges[:-1]}, "edges cover 6 of a block's 8 tokens"),
        ({"execution": 1}, "execution 1, which is not listed"),
        ({"row_tokens": 7}, "row_tokens"),
        ({"window_rows": 0}, "window_rows"),
        ({"temperature": 0.0}, "temperature"),
        ({"advantage": float("nan")}, "advantage"),
        ({"normalizer": 0}, "normalizer"),
    ],
)
def test_a_broken_invariant_is_named(changes: dict[str, object], problem: str) -> None:
    one()
    if "execution" in changes:
        changes = {"rows": (Row(blocks=(replace(FOREST, execution=1),)),)}
    with pytest.raises(MicroStepError, match=problem):
        one(**changes)
