"""Bytes of a micro-step: a NumPy .npz whose bytes depend on the contents alone, so that its digest
names it. Read without pickle.

Arrays (n segments, t tokens, k targets): meta uint8 (JSON of the scalars and executions),
row_segments int64 [rows], segment_execution/segment_tokens/segment_targets int64 [n],
segment_versioned bool [n], token_ids int64 [t], target_positions int64 [k],
behaviour_logprobs float64 [k], versions int64 [k of versioned segments].
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from gyre.core.microstep import ExecutionInfo, MicroStep, MicroStepError, Row, Segment

_SCHEMA = 1


def encode_microstep(step: MicroStep) -> bytes:
    """The same micro-step gives the same bytes in every process: zip members carry no time."""
    segments = step.segments
    meta = {
        "schema": _SCHEMA,
        "batch": step.batch,
        "index": step.index,
        "row_tokens": step.row_tokens,
        "normalizer": step.normalizer,
        "executions": [asdict(info) for info in step.executions],
    }
    arrays = {
        "meta": np.frombuffer(json.dumps(meta, sort_keys=True).encode(), dtype=np.uint8),
        "row_segments": _integers(len(row.segments) for row in step.rows),
        "segment_execution": _integers(segment.execution for segment in segments),
        "segment_tokens": _integers(len(segment.token_ids) for segment in segments),
        "segment_targets": _integers(len(segment.target_positions) for segment in segments),
        "segment_versioned": np.array([bool(segment.versions) for segment in segments], dtype=bool),
        "token_ids": _integers(token for segment in segments for token in segment.token_ids),
        "target_positions": _integers(p for segment in segments for p in segment.target_positions),
        "behaviour_logprobs": np.array(
            [value for segment in segments for value in segment.behaviour_logprobs], np.float64
        ),
        "versions": _integers(v for segment in segments for v in segment.versions),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decode_microstep(payload: bytes) -> MicroStep:
    """Raises MicroStepError: not a micro-step, or one that breaks an invariant."""
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays["meta"].tobytes())
        return _assemble(meta, arrays)
    except MicroStepError:
        raise
    except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise MicroStepError(f"these bytes are no micro-step: {error}") from error


def microstep_digest(payload: bytes) -> str:
    """SHA-256 of the encoded bytes, as `micro_step_emitted` states it."""
    return hashlib.sha256(payload).hexdigest()


def _assemble(meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> MicroStep:
    if meta["schema"] != _SCHEMA:
        raise MicroStepError(f"micro-step of schema {meta['schema']}, this program reads {_SCHEMA}")
    segments = _segments(arrays)
    rows = tuple(
        Row(segments=tuple(islice(segments, count))) for count in arrays["row_segments"].tolist()
    )
    return MicroStep(
        batch=meta["batch"],
        index=meta["index"],
        row_tokens=meta["row_tokens"],
        normalizer=meta["normalizer"],
        executions=tuple(ExecutionInfo(**info) for info in meta["executions"]),
        rows=rows,
    )


def _segments(arrays: Mapping[str, Any]) -> Iterator[Segment]:
    tokens, positions = arrays["token_ids"].tolist(), arrays["target_positions"].tolist()
    logprobs, versions = arrays["behaviour_logprobs"].tolist(), arrays["versions"].tolist()
    token, target, version = 0, 0, 0
    for execution, num_tokens, num_targets, versioned in zip(
        arrays["segment_execution"].tolist(),
        arrays["segment_tokens"].tolist(),
        arrays["segment_targets"].tolist(),
        arrays["segment_versioned"].tolist(),
        strict=True,
    ):
        num_versions = num_targets if versioned else 0
        yield Segment(
            execution=execution,
            token_ids=tuple(tokens[token : token + num_tokens]),
            target_positions=tuple(positions[target : target + num_targets]),
            behaviour_logprobs=tuple(logprobs[target : target + num_targets]),
            versions=tuple(versions[version : version + num_versions]),
        )
        token, target = token + num_tokens, target + num_targets
        version += num_versions


def _integers(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, dtype=np.int64)
