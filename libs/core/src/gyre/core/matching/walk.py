"""Carriers of a request's walk along the tree, and what an encoder is told of where it stands."""

from __future__ import annotations

from array import array
from collections.abc import Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from gyre.contracts.events.calls import RequestRole, Segment
from gyre.core.matching.encoder import Encoder, Tokens
from gyre.core.matching.trail import Trail
from gyre.core.matching.turns import SentTurns
from gyre.core.messages import Message
from gyre.core.tree import Tree
from gyre.core.tree_nodes import ASSISTANT, Node


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
    at. trail: where it has been. is_known: nothing was new so far, and nothing passed over."""

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
    trail: Trail | None = None
    is_known: bool = True

    def look(self, tree: Tree) -> None:
        """Something is looked up at the cursor."""
        if self.trail is not None:
            self.trail.look(tree, self.cursor)


def role_before(tree: Tree, walk: Walk) -> str:
    """The role of what stands at the cursor, as encoders tell places apart."""
    is_result = walk.cursor is not None and tree.node(walk.cursor).role == "tool"
    return "tool" if is_result else "user"


def opening_of(tree: Tree, turn: Node) -> Tokens:
    """What the turn was sampled after; nothing for one that was told."""
    if turn.sampled is None or turn.parent is None:
        return array("i")
    return tree.node(turn.parent).token_ids


def told_turn(tree: Tree, walk: Walk, message: Message) -> Tokens:
    """An assistant's message at the cursor, as the template tells it."""
    return _turn_end(tree, walk) + walk.encoder.assistant(message, after=role_before(tree, walk))


def turn_opening(tree: Tree, walk: Walk, carried: Node | None = None) -> Tokens:
    """What opens a turn at the cursor: one to be sampled, or `carried`, sampled elsewhere."""
    elsewhere = None if carried is None else opening_of(tree, carried)
    after = role_before(tree, walk)
    return _turn_end(tree, walk) + walk.encoder.generation(after=after, carried=elsewhere)


def _turn_end(tree: Tree, walk: Walk) -> Tokens:
    """What closes the assistant's turn that the cursor stands at; nothing for another node."""
    node = None if walk.cursor is None else tree.node(walk.cursor)
    if node is None or node.role != ASSISTANT:
        return array("i")
    return walk.encoder.turn_end(node.token_ids, opening=opening_of(tree, node))


def placed(turns: SentTurns, walk: Walk, message: Message) -> Message:
    """A tool's result with the place of its call, for templates that tell it by that."""
    if message.role != "tool":
        return message
    place = turns.place(message.tool_call_id)
    if place is None and walk.turn is not None:
        ids = [call.id for call in walk.turn.tool_calls]
        place = ids.index(message.tool_call_id) if message.tool_call_id in ids else None
    return replace(message, call=place)


def segments_to(
    tree: Tree, recorded: Set[str], node: str
) -> tuple[str | None, tuple[Segment, ...]]:
    """The path to `node` from the last node that is `recorded`: that one, and what follows it."""
    segments = []
    cursor: str | None = node
    while cursor is not None and cursor not in recorded:
        step = tree.node(cursor)
        segments.append(
            Segment(
                node=step.id,
                parent=step.parent,
                role=step.role,
                token_ids=tuple(step.token_ids),
                known_by=tuple(key.hex() for key in step.known_by),
            )
        )
        cursor = step.parent
    return cursor, tuple(reversed(segments))
