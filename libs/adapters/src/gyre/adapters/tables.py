"""The tables that are queried, as SQLAlchemy Core. JetStream is the source of truth: every row here
is a projection and can be made again from the log.

Times are unix seconds. The migrations in `migrations/` build these tables; a test holds the two
against each other.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
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

# One row an execution that has called. num_nodes, num_calls: of the rows below; sealed: nothing
# follows; damaged: why its records do not make a tree, null while they do.
trees = Table(
    "trees",
    metadata,
    Column("execution", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("num_nodes", Integer, nullable=False),
    Column("num_calls", Integer, nullable=False),
    Column("sealed", Boolean, nullable=False),
    Column("damaged", Text),
    Index("trees_job", "job"),
)

# One row a message's token segment. ordinal: its place among the execution's nodes, in the order of
# the log. kind: `input` or `sampled`. provenance: `external` for what the policy read, else the
# status of the call that sampled it; only `committed` ones may be trained. call_id: the call that
# brought the node. token_ids: int32 little endian; logprobs: float64 little endian, as many.
# position: tokens before this segment. known_by: keys of an input's texts. Null for inputs:
# logprobs, fork_reason, and the call's attempt, request_role, agents, temperature. caused_by: the
# sampled node that made the program ask for this one, cause: how (`gyre.core.causes`), null for
# what goes on where it was; known once the calls are sealed.
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
    Column("ordinal", Integer, nullable=False),
    Column("known_by", ARRAY(LargeBinary), nullable=False),
    Column("attempt", Integer),
    Column("request_role", Text),
    Column("agent", Text),
    Column("parent_agent", Text),
    Column("temperature", Double),
    Column("caused_by", Text),
    Column("cause", Text),
    Index("tree_nodes_parent", "execution", "parent"),
)


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """int32 little endian, 4 bytes a token. Raises OverflowError for an id that does not fit."""
    return _little(array("i", token_ids))


def tokens_of(data: bytes) -> array[int]:
    """The inverse of `token_bytes`. Raises ValueError when the length is no multiple of 4."""
    return _from_little("i", data)


def logprob_bytes(logprobs: Sequence[float]) -> bytes:
    """float64 little endian, 8 bytes a token: as exact as the log."""
    return _little(array("d", logprobs))


def logprobs_of(data: bytes) -> array[float]:
    """The inverse of `logprob_bytes`. Raises ValueError when the length is no multiple of 8."""
    return _from_little("d", data)


def _little(values: array[Any]) -> bytes:
    """values: nobody else's."""
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_little(kind: Literal["i", "d"], data: bytes) -> array[Any]:
    values: array[Any] = array(kind, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
