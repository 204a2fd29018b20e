"""Bytes of a micro-step: safetensors whose bytes depend on the contents alone, so that its digest
names it. Reading them runs no code.

Tensors (n blocks, e edges, t tokens, k targets): meta uint8 (JSON of the scalars and executions),
row_blocks int64 [rows], block_execution/block_tokens/block_edges/block_targets/block_repeated int64
[n], block_versioned bool [n], edge_stops/edge_parents int64 [e] (as in `Edge`, an edge starts where
the one before it stops), token_ids int64 [t], target_positions int64 [k], behaviour_logprobs
float64 [k], versions int64 [k of versioned blocks].

Schema 2 held the same as a NumPy .npz. Schema 1 was one with `segments` in place of blocks, each
one path. Both are still read, without pickle.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from gyre.core.microstep import (
    NO_EDGE,
    Edge,
    ExecutionInfo,
    MicroStep,
    MicroStepError,
    Row,
    TreeBlock,
)

_SCHEMA = 3
_ZIP_SCHEMA = 2
_FLAT_SCHEMA = 1
_ZIP_MAGIC = b"PK"
# What reading altered bytes of either form may raise.
_UNREADABLE = (
    *(KeyError, ValueError, TypeError, OSError, EOFError),
    *(zipfile.BadZipFile, SafetensorError),
)


def encode_microstep(step: MicroStep) -> bytes:
    """The same micro-step gives the same bytes in every process: tensors lie in a fixed order, and
    their header has no free-form part, whose order is any."""
    blocks = step.blocks
    meta = {
        "schema": _SCHEMA,
        "batch": step.batch,
        "index": step.index,
        "row_tokens": step.row_tokens,
        "window_rows": step.window_rows,
        "normalizer": step.normalizer,
        "executions": [asdict(info) for info in step.executions],
    }
    logprobs = chain.from_iterable(block.behaviour_logprobs for block in blocks)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "meta": np.frombuffer(json.dumps(meta, sort_keys=True).encode(), dtype=np.uint8),
        "row_blocks": _integers(len(row.blocks) for row in step.rows),
        "block_execution": _integers(block.execution for block in blocks),
        "block_tokens": _integers(len(block.token_ids) for block in blocks),
        "block_edges": _integers(len(block.edges) for block in blocks),
        "block_targets": _integers(len(block.target_positions) for block in blocks),
        "block_repeated": _integers(block.num_repeated_tokens for block in blocks),
        "block_versioned": np.array([bool(block.versions) for block in blocks], dtype=bool),
        "edge_stops": _integers(edge.stop for block in blocks for edge in block.edges),
        "edge_parents": _integers(edge.parent for block in blocks for edge in block.edges),
        "token_ids": _integers(chain.from_iterable(b.token_ids for b in blocks)),
        "target_positions": _integers(chain.from_iterable(b.target_positions for b in blocks)),
        "behaviour_logprobs": np.fromiter(logprobs, dtype=np.float64),
        "versions": _integers(chain.from_iterable(block.versions for block in blocks)),
    }
    return save(arrays)


def decode_microstep(payload: bytes) -> MicroStep:
    """Raises MicroStepError: not a micro-step, or one that breaks an invariant."""
    try:
        arrays = _from_zip(payload) if payload.startswith(_ZIP_MAGIC) else load(payload)
        meta = json.loads(arrays["meta"].tobytes())
        if meta["schema"] == _FLAT_SCHEMA:
            meta, arrays = _from_flat(meta, arrays)
        return _assemble(meta, arrays)
    except MicroStepError:
        raise
    except _UNREADABLE as error:
        raise MicroStepError(f"these bytes are no micro-step: {error}") from error


def _from_zip(payload: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _from_flat(
    meta: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Schema 1 as the later ones: a segment is a block of one edge, all rows are one forward
    unit."""
    num_segments = len(arrays["segment_tokens"])
    blocks = {
        f"block_{name}": arrays[f"segment_{name}"]
        for name in ("execution", "tokens", "targets", "versioned")
    }
    edges = {
        "block_edges": np.ones(num_segments, dtype=np.int64),
        "block_repeated": np.zeros(num_segments, dtype=np.int64),
        "edge_stops": arrays["segment_tokens"],
        "edge_parents": np.full(num_segments, NO_EDGE, dtype=np.int64),
    }
    rows = arrays["row_segments"]
    window = {"schema": _SCHEMA, "window_rows": max(1, len(rows))}
    return {**meta, **window}, {**arrays, **blocks, **edges, "row_blocks": rows}


def _assemble(meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> MicroStep:
    if meta["schema"] not in (_ZIP_SCHEMA, _SCHEMA):
        raise MicroStepError(
            f"micro-step of schema {meta['schema']}, this program reads {_SCHEMA} and older"
        )
    blocks = _blocks(arrays)
    rows = tuple(
        Row(blocks=tuple(islice(blocks, count))) for count in arrays["row_blocks"].tolist()
    )
    return MicroStep(
        batch=meta["batch"],
        index=meta["index"],
        row_tokens=meta["row_tokens"],
        window_rows=meta["window_rows"],
        normalizer=meta["normalizer"],
        executions=tuple(ExecutionInfo(**info) for info in meta["executions"]),
        rows=rows,
    )


def _blocks(arrays: Mapping[str, Any]) -> Iterator[TreeBlock]:
    flat = ("token_ids", "target_positions", "behaviour_logprobs", "versions")
    tokens, positions, logprobs, versions = (iter(arrays[name].tolist()) for name in flat)
    edges = zip(arrays["edge_stops"].tolist(), arrays["edge_parents"].tolist(), strict=True)
    by_block = ("execution", "tokens", "edges", "targets", "repeated", "versioned")
    for execution, num_tokens, num_edges, num_targets, num_repeated, versioned in zip(
        *(arrays[f"block_{name}"].tolist() for name in by_block), strict=True
    ):
        yield TreeBlock(
            execution=execution,
            token_ids=tuple(islice(tokens, num_tokens)),
            edges=_edges(islice(edges, num_edges)),
            target_positions=tuple(islice(positions, num_targets)),
            behaviour_logprobs=tuple(islice(logprobs, num_targets)),
            versions=tuple(islice(versions, num_targets if versioned else 0)),
            num_repeated_tokens=num_repeated,
        )


def _edges(stops_and_parents: Iterable[tuple[int, int]]) -> tuple[Edge, ...]:
    edges: list[Edge] = []
    for stop, parent in stops_and_parents:
        start = edges[-1].stop if edges else 0
        edges.append(Edge(start=start, stop=stop, parent=parent))
    return tuple(edges)


def _integers(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, dtype=np.int64)
