"""How cached KV travels: a header that says whose it is, then blocks of rows with their digests.

    header   JSON, see `Header`
    block    16 bytes BLAKE2b of the rest | fp32 little-endian [layers, 2, K, n, D]

A block holds BLOCK_TOKENS tokens, the last one what is left: a copy takes the memory of one block,
whatever the context, and the model thread is held for one block at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor

from gyre.cell_agent.engine.local.errors import TransferError
from gyre.core.policy_config import PolicyConfig

BLOCK_TOKENS = 256
DIGEST_BYTES = 16
VALUE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What follows is the KV of tokens [start, end) of a prefix, under the weights `version`.

    shape: layers, key-value heads K, head size D. tokens: digest of the prefix's ids [0, end).
    """

    version: str
    shape: tuple[int, int, int]
    start: int
    end: int
    tokens: str

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()


def read_header(text: str) -> Header:
    """Raises TransferError."""
    try:
        raw: dict[str, Any] = orjson.loads(text)
        layers, heads, dim = (int(size) for size in raw["shape"])
        return Header(
            version=str(raw["version"]),
            shape=(layers, heads, dim),
            start=int(raw["start"]),
            end=int(raw["end"]),
            tokens=str(raw["tokens"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise TransferError(f"the source's header cannot be read: {error!r}") from error


def kv_shape(config: PolicyConfig) -> tuple[int, int, int]:
    """Layers, key-value heads, head size."""
    return config.num_layers, config.num_groups, config.head_size


def tokens_digest(tokens: Sequence[int]) -> str:
    """64 hex digits."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).hexdigest()


def block_bounds(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Tokens [first, last) of each block of [start, end)."""
    return pairwise([*range(start, end, BLOCK_TOKENS), end])


def block_bytes(shape: tuple[int, int, int], num_tokens: int) -> int:
    """Length of a block of `num_tokens` tokens, its digest included."""
    layers, heads, dim = shape
    return DIGEST_BYTES + layers * 2 * heads * dim * num_tokens * VALUE_BYTES


def encode_block(rows: Tensor) -> bytes:
    """`rows` [layers, 2, K, n, D] in fp32."""
    body = rows.contiguous().numpy().astype("<f4", copy=False).tobytes()
    return _digest(body) + body


def decode_block(data: bytes, shape: tuple[int, int, int]) -> Tensor:
    """[layers, 2, K, n, D]. Raises TransferError for bytes that are not what was sent."""
    body = memoryview(data)[DIGEST_BYTES:]
    if _digest(body) != data[:DIGEST_BYTES]:
        raise TransferError("a block does not have its digest")
    layers, heads, dim = shape
    values = np.frombuffer(body, dtype="<f4").astype(np.float32)
    return torch.from_numpy(values).view(layers, 2, heads, -1, dim)


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
