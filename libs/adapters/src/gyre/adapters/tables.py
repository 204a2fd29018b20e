"""The tables that are queried, as SQLAlchemy Core. JetStream is the source of truth: every row here
is a projection and can be made again from the log.

Times are unix seconds. The migrations in `migrations/` build these tables; a test holds the two
against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()

# How far each projection has folded the log.
projection_checkpoints = Table(
    "projection_checkpoints",
    metadata,
    Column("name", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

# One row a scoring: provenance of a reward. `reward` is null unless the scorer gave one.
evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("execution", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("artifact_digest", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reward", Double),
    Column("detail", JSONB, nullable=False),
    Column("scorer", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Index("evaluations_execution", "execution"),
    Index("evaluations_job", "job"),
)

executions = Table(
    "executions",
    metadata,
    Column("execution", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("reward", Double),
    Column("started_at", Double),
    Column("ended_at", Double),
    Index("executions_job_group", "job", "group_id"),
)

# One row a message's token segment. token_ids: int32 little endian; logprobs: float32 little
# endian, as many, null for what the policy did not sample. position: tokens before this segment.
tree_nodes = Table(
    "tree_nodes",
    metadata,
    Column("execution", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("parent", Text),
    Column("job", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("call_id", Text),
    Column("token_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary),
    Column("provenance", Text, nullable=False),
    Column("fork_reason", Text),
    Column("position", Integer, nullable=False),
    Column("spans", JSONB, nullable=False),
    Index("tree_nodes_parent", "execution", "parent"),
)


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """int32 little endian, 4 bytes a token. Raises OverflowError for an id that does not fit."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def tokens_of(data: bytes) -> list[int]:
    """The inverse of `token_bytes`. Raises ValueError when the length is no multiple of 4."""
    return [int(token) for token in np.frombuffer(data, dtype="<i4")]


def logprob_bytes(logprobs: Sequence[float]) -> bytes:
    """float32 little endian, 4 bytes a token."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def logprobs_of(data: bytes) -> list[float]:
    """The inverse of `logprob_bytes`, as the nearest float32."""
    return [float(logprob) for logprob in np.frombuffer(data, dtype="<f4")]
