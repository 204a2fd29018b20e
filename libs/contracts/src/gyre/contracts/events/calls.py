"""What the proxy says, on calls.<job>.exec.<execution>."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event

RequestRole = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "other"]


class Segment(Part):
    """One message's tokens: an input node of the trajectory tree, not sampled in this call.

    node: id = hash(parent, token ids). role: the message's role (system, user, assistant, tool, or
    "generation" for the tokens that open the assistant's turn). known_by: 32 hex digits each, for
    the message's texts when they come again; empty in events that do not say it.
    """

    node: str
    parent: str | None
    role: str
    token_ids: tuple[int, ...]
    known_by: tuple[str, ...] = ()


class Span(Part):
    """Output tokens [start, end) were sampled by `cell` under (lineage, version)."""

    start: int
    end: int
    version: int
    lineage: int
    cell: int


class Moved(Part):
    """The route changed between two calls, and with it the cache that a path's next call meets.

    tokens_at_source: of the call's context, what the engine of `source` held when the path's last
    call ended. Of them tokens_migrated were copied before the call began, in migration_s, and
    tokens_prefilled_again were computed by the call, at `destination`. What is neither was in its
    cache before.
    """

    source: int
    destination: int
    tokens_at_source: int
    tokens_migrated: int = 0
    tokens_prefilled_again: int = 0
    migration_s: float = 0.0


@event
class CallRecorded(Body):
    """One model request, token exact. Committed once this event is acknowledged.

    parent: the node that `segments` continue, None at a root. node: the sampled node's id, which
    includes the call's id, so that equal outputs of two calls stay two nodes.
    output_logprobs: natural log, one per output token, after division by `temperature`.
    outcome: only `committed` ones are targets. `aborted`: the client or a time-out cut it;
    `superseded`: a retry took its place; `failed`: the client was told an error.
    delivered: earlier calls of the execution whose answers went out whole since its last event.
    api: the path below /v1/ that the request came by, "" in events that do not say it.
    queue_s: from the request to the first order to an engine; first_token_s: to its first token;
    None where there was none.
    agent, parent_agent: the harness's names of the sub-agent that asked and of the agent that
    started it; None for the main agent, and where the harness does not say.
    moved: what a change of the route since the path's last call cost; None where there was none, or
    where the weights had changed meanwhile, so that no cache was worth anything.
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
    delivered: tuple[str, ...] = ()
    api: str = ""
    queue_s: float | None = None
    first_token_s: float | None = None
    agent: str | None = None
    parent_agent: str | None = None
    moved: Moved | None = None


@event
class CallRerouted(Body):
    """A call in flight went on elsewhere. tokens_kept: sampled at the source, not sampled again.

    Of its context with the tokens kept: tokens_migrated have their cache entries from the source,
    copied in migration_s; tokens_prefilled_again were computed at the destination, by its own
    count, 0 where it sampled nothing. What is neither was in its cache before. num_cached_tokens:
    what it did not have to compute; None where it sampled nothing, and in events without it.
    """

    TYPE: ClassVar[str] = "call_rerouted"
    call: str
    execution: str
    source: int
    destination: int
    tokens_kept: int
    reason: Literal["transition", "engine_lost", "publication"]
    tokens_migrated: int = 0
    tokens_prefilled_again: int = 0
    migration_s: float = 0.0
    num_cached_tokens: int | None = None


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
    of the last event before this one on the subject, 0 if none. unused: of each path whose cache
    was copied to another cell after its last call, what that cost; nobody has used it."""

    TYPE: ClassVar[str] = "calls_sealed"
    execution: str
    num_calls: int
    last_seq: int
    unused: tuple[Moved, ...] = ()
