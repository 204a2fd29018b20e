"""What the proxy says, on calls.<job>.exec.<execution>."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event

RequestRole = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "other"]


class Segment(Part):
    """One message's tokens: an input node of the trajectory tree, not sampled in this call.

    node: id = hash(parent, token ids). role: the message's role (system, user, assistant, tool, or
    "generation" for the tokens that open the assistant's turn).
    """

    node: str
    parent: str | None
    role: str
    token_ids: tuple[int, ...]


class Span(Part):
    """Output tokens [start, end) were sampled by `cell` under (lineage, version)."""

    start: int
    end: int
    version: int
    lineage: int
    cell: int


@event
class CallRecorded(Body):
    """One model request, token exact. Committed once this event is acknowledged.

    parent: the node that `segments` continue, None at a root. node: the sampled node's id, which
    includes the call's id, so that equal outputs of two calls stay two nodes.
    output_logprobs: natural log, one per output token, after division by `temperature`.
    outcome: only `committed` ones are targets. `aborted`: the client or a time-out cut it;
    `superseded`: a retry took its place; `failed`: the client was told an error.
    fork_reason: why this request did not continue the path of an earlier one; None when it did.
    """

    TYPE: ClassVar[str] = "call_recorded"
    call: str
    execution: str
    attempt: int
    request_role: RequestRole
    parent: str | None
    segments: tuple[Segment, ...]
    node: str
    output_ids: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    num_input_tokens: int
    num_cached_tokens: int
    temperature: float
    max_new_tokens: int
    overridden: tuple[str, ...] = ()
    finish_reason: str
    outcome: Literal["committed", "aborted", "superseded", "failed"]
    error: str | None = None
    fork_reason: str | None = None
    num_tool_calls: int = 0
    num_malformed_tool_calls: int = 0
    num_reroutes: int = 0
    duration_s: float


@event
class CallRerouted(Body):
    """A call in flight went on elsewhere. tokens_kept: sampled at the source, not sampled again."""

    TYPE: ClassVar[str] = "call_rerouted"
    call: str
    execution: str
    source: int
    destination: int
    tokens_kept: int
    reason: Literal["transition", "engine_lost", "publication"]


@event
class CallUndelivered(Body):
    """Committed, but its answer did not reach the client whole: not a target."""

    TYPE: ClassVar[str] = "call_undelivered"
    call: str
    execution: str
    reason: str


@event
class CallsSealed(Body):
    """Nothing of this execution follows. num_calls: call_recorded events; last_seq: stream sequence
    of the last event before this one on the subject, 0 if none."""

    TYPE: ClassVar[str] = "calls_sealed"
    execution: str
    num_calls: int
    last_seq: int
