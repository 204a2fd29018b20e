"""Weights as they lie in safetensors documents: read, checked and written without torch.

The agent hands weights from a file or a peer to its engine; nothing is computed with them on the
way, so bytes with a name, a type and a shape are all that is needed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gyre.cell_agent.engine.errors import BadWeightsError
from gyre.core.policy_weights import EMBEDDING, LM_HEAD

Document = bytes | bytearray | memoryview | mmap.mmap

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of one number, by safetensors' names of the types that weights have."""

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The same types by torch's names."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One parameter by its Hugging Face name. dtype: a key of ITEM_BYTES. data: its numbers in C
    order, a view that keeps the document alive."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def read_document(document: Document) -> dict[str, TensorView]:
    """The tensors of a safetensors document, by name; nothing is copied. Raises BadWeightsError."""
    whole = memoryview(document).cast("B")
    try:
        start = _LENGTH_BYTES + int.from_bytes(whole[:_LENGTH_BYTES], "little")
        if not _LENGTH_BYTES < start <= len(whole):
            raise ValueError(f"a header of {start - _LENGTH_BYTES} bytes in {len(whole)}")
        header = json.loads(bytes(whole[_LENGTH_BYTES:start]))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _view(name, entry, whole[start:]) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadWeightsError(f"no safetensors document: {error}") from error


def read_directory(directory: Path) -> dict[str, TensorView]:
    """The weights of a Hugging Face directory, mapped, not read. Raises BadWeightsError."""
    found: dict[str, TensorView] = {}
    try:
        for path in _files(directory):
            with path.open("rb") as stream:
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            found |= read_document(mapped)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadWeightsError(f"{directory}: no readable weights: {error}") from error
    return found


def write_document(views: Iterable[TensorView]) -> bytes:
    """A safetensors document of these tensors."""
    header: dict[str, Any] = {}
    pieces: list[memoryview] = []
    end = 0
    for view in views:
        begin, end = end, end + len(view.data)
        header[view.name] = {
            "dtype": view.dtype,
            "shape": list(view.shape),
            "data_offsets": [begin, end],
        }
        pieces.append(view.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *pieces])


def in_buckets(views: Iterable[TensorView], max_bytes: int) -> Iterator[list[TensorView]]:
    """In order, as many a bucket as fit; a tensor above `max_bytes` is a bucket by itself."""
    bucket: list[TensorView] = []
    size = 0
    for view in views:
        if bucket and size + len(view.data) > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(view)
        size += len(view.data)
    if bucket:
        yield bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShapes:
    """The parameters of the model that an engine was started with. tied: the output layer is the
    embedding, and need not be sent."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

    @classmethod
    def of(cls, directory: Path) -> ModelShapes:
        """Of a Hugging Face directory. Raises BadWeightsError."""
        shapes = {name: view.shape for name, view in read_directory(directory).items()}
        tied = is_tied(directory)
        if tied and EMBEDDING in shapes:
            shapes.setdefault(LM_HEAD, shapes[EMBEDDING])
        return cls(shapes=shapes, tied=tied)

    def check(self, views: Iterable[TensorView]) -> None:
        """They are the model's parameters, all of them, in its shapes: an engine may take unknown
        names in silence, and die of a wrong shape. Raises BadWeightsError naming the first."""
        named = {view.name: view.shape for view in views}
        for name, shape in named.items():
            if name not in self.shapes:
                raise BadWeightsError(f"{name} is no parameter of the model")
            if shape != self.shapes[name]:
                raise BadWeightsError(
                    f"{name} has the shape {shape}, in the model {self.shapes[name]}"
                )
        missing = self.shapes.keys() - named.keys() - ({LM_HEAD} if self.tied else set())
        if missing:
            raise BadWeightsError(f"{min(missing)} is missing")


def named_checksum(weights: Mapping[str, TensorView]) -> str:
    """`checksum_by_name` of tensors in documents."""
    return checksum_by_name(weights, lambda name: as_float32(weights[name]))


def checksum_by_name(names: Iterable[str], float32: Callable[[str], memoryview | bytes]) -> str:
    """SHA-256 over names (UTF-8) in order, each followed by its tensor's numbers in float32, C
    order: what `local` says, and the manifest of a checkpoint. By the names of Hugging Face, and
    of a tied model without `lm_head.weight`, so that a trainer says of what it exports what an
    engine says that loaded it."""
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(name.encode())
        digest.update(float32(name))
    return digest.hexdigest()


def as_float32(view: TensorView) -> memoryview | bytes:
    """Its numbers in fp32, rounded to the nearest where it is more precise."""
    match view.dtype:
        case "F32":
            return view.data
        case "BF16":
            # The upper half of the float32 with the same value.
            return (np.frombuffer(view.data, "<u2").astype("<u4") << 16).tobytes()
        case _:
            numbers = np.frombuffer(view.data, {"F64": "<f8", "F16": "<f2"}[view.dtype])
            return numbers.astype("<f4").tobytes()


def is_tied(model: Path) -> bool:
    """Whether the model's output layer is its embedding. Raises BadWeightsError."""
    try:
        config: Mapping[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("tie_word_embeddings", False))
    except (OSError, ValueError, AttributeError) as error:
        raise BadWeightsError(f"{model}/config.json is not readable: {error}") from error


def _view(name: str, entry: Mapping[str, Any], data: memoryview) -> TensorView:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    size = prod(shape) * ITEM_BYTES[entry["dtype"]]
    if end - begin != size or not 0 <= begin <= end <= len(data):
        raise ValueError(f"{name}: bytes {begin} to {end} for shape {shape}")
    return TensorView(name=name, dtype=entry["dtype"], shape=shape, data=data[begin:end])


def _files(directory: Path) -> list[Path]:
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    index = json.loads((directory / INDEX_FILE).read_text(encoding="utf-8"))
    return [directory / name for name in sorted(set(index["weight_map"].values()))]
