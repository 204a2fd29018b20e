"""Carriers of a request's walk along the tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.events.calls import RequestRole
from gyre.core.matching.encoder import Encoder
from gyre.core.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """parent: the node that the sampled tokens will hang from, equal for equal requests. added: the
    nodes that the request brought."""

    parent: str
    num_input_tokens: int
    fork_reason: str | None
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a request begins. tools: their key. keys: of its head. is_first: it opens with the tools
    and the system text of the execution's first call; True before there is one, and where either
    has neither."""

    tools: bytes
    keys: tuple[bytes, bytes]
    is_first: bool


@dataclass(slots=True, kw_only=True)
class Walk:
    """Where a request has been followed to, and why it left known ground, if it did. agent: which
    sub-agent asks, if the harness says so. turn: the assistant's message that the cursor stands
    at."""

    attempt: int
    role: RequestRole
    agent: str | None
    opening: Opening
    encoder: Encoder
    cursor: str | None = None
    turn: Message | None = None
    left: bool = False
    reason: str | None = None
    added: list[str] = field(default_factory=list)
