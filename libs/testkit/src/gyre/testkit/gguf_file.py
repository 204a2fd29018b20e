"""Writes a file of llama.cpp's format (GGUF), to be read by others' readers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]],
) -> None:
    """tensors: shape, llama.cpp's number of a type, and bytes, by name. metadata: integers, floats,
    texts, lists of texts and of integers.

    Version 3 of the format: header, metadata, table of tensors, then these, each at a multiple of
    32 bytes."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _typed(value)]
    offset = 0
    for name, (shape, kind, data) in tensors.items():
        parts += [_text(name), struct.pack("<I", len(shape))]
        parts += [struct.pack("<Q", size) for size in reversed(shape)]
        parts.append(struct.pack("<IQ", kind, offset))
        offset += len(_padded(data))
    path.write_bytes(_padded(b"".join(parts)) + b"".join(_padded(it[2]) for it in tensors.values()))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: Any) -> bytes:
    match value:
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case _:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
