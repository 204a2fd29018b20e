"""What a trajectory tree is made of: nodes, and the ids that follow from what they hold."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gyre.contracts.events.calls import CallRecorded, RequestRole, Span

CallStatus = Literal["committed", "aborted", "superseded", "failed", "undelivered"]

# Role of a sampled node and of assistant text that the client injected.
ASSISTANT = "assistant"
# Role of the tokens that open the assistant's turn.
GENERATION = "generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What makes a node a sampled one.

    logprobs: float64, one per token, natural log at `temperature`. spans: token ranges by policy
    version and cell. order: index of the call among the execution's recorded calls, from 0. agent,
    parent_agent: which sub-agent asked and which one started it, where the harness says so.
    """

    call: str
    attempt: int
    request_role: RequestRole
    logprobs: array[float]
    spans: tuple[Span, ...]
    temperature: float
    status: CallStatus
    order: int
    fork_reason: str | None
    agent: str | None = None
    parent_agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """token_ids: int32, never written to. num_context_tokens: tokens of the path before this node.

    role: the message's role, "generation" or "assistant". sampled is None for input nodes,
    assistant text that the client injected among them. known_by: keys of an input's texts
    (`gyre.core.matching.echoes`), empty where the log does not say.
    """

    id: str
    parent: str | None
    role: str
    token_ids: array[int]
    num_context_tokens: int
    sampled: Sampled | None = None
    known_by: tuple[bytes, ...] = ()

    @property
    def num_path_tokens(self) -> int:
        """Tokens from the root to the end of this node."""
        return self.num_context_tokens + len(self.token_ids)

    @property
    def is_target(self) -> bool:
        """Whether its tokens may be trained: sampled, committed, delivered and not empty."""
        sampled = self.sampled
        return sampled is not None and sampled.status == "committed" and len(self.token_ids) > 0


def token_array(token_ids: Iterable[int]) -> array[int]:
    """int32, 4 bytes a token. Raises OverflowError for an id that does not fit."""
    return token_ids if isinstance(token_ids, array) else array("i", token_ids)


def call_tokens(call: CallRecorded) -> list[array[int]]:
    """The tokens of each of its segments, then those it sampled, as `token_array`."""
    return [*(token_array(one.token_ids) for one in call.segments), token_array(call.output_ids)]


def node_id(parent: str | None, token_ids: Iterable[int]) -> str:
    """An input node's id, 24 hex digits: equal segments below one parent are the same node."""
    digest = hashlib.sha256((parent or "root").encode())
    digest.update(b"\x1finput\x1f")
    digest.update(token_array(token_ids).tobytes())
    return digest.hexdigest()[:24]


def sampled_node_id(parent: str | None, call: str, token_ids: Iterable[int]) -> str:
    """A sampled node's id, 24 hex digits: includes the call, so no two calls share one."""
    digest = hashlib.sha256((parent or "root").encode())
    digest.update(f"\x1f{call}\x1f".encode())
    digest.update(token_array(token_ids).tobytes())
    return digest.hexdigest()[:24]
