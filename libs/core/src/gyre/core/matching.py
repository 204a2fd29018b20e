"""Matches a request's history against the tokens that are already known, by structure.

Invariants (property `tito`):
- a message that matches is never encoded again: its stored tokens are reused, so the tokenizer may
  be gone for all that old turns need;
- an assistant turn is known by the tool-call ids that it was sent with, else by the text that was
  sent, never by re-tokenising the client's echo;
- a turn that turns up below another prefix (a compaction keeps the last rounds) is carried over
  with its sampled tokens, as context;
- a request that does not go on where an earlier one ended has a fork reason.

| fork reason | the request |
|---|---|
| new_attempt | is the first of another attempt |
| new_root | begins with other messages |
| tools_changed | begins with other tools |
| compaction | begins with other messages and carries turns over |
| dropped_turn | goes on after an input without the turn that was sampled there |
| edited_history | has an assistant turn that was never sent, or other text in an old place |
| branch | continues a turn that another request continues too |
| repeat | is equal to an earlier one |
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gyre.contracts.events.calls import CallRecorded, Segment
from gyre.core.messages import Message, input_key, tools_key, turn_text_key
from gyre.core.tree import ASSISTANT, GENERATION, Tree, node_id

Tokens: TypeAlias = "array[int]"
Tools: TypeAlias = Sequence[Mapping[str, Any]]

_GENERATION_KEY = b"generation"


class Encoder(Protocol):
    """Turns new content into tokens, int32. Each joins on without touching what is before."""

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        """What opens a conversation: the tools and the first system message."""
        ...

    def inputs(self, messages: Sequence[Message]) -> list[Tokens]:
        """One entry a message, none of them the assistant's, after a message that is closed."""
        ...

    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]:
        """As `inputs`, after an assistant's turn; the first entry closes the turn."""
        ...

    def turn_end(self, turn: Tokens) -> Tokens:
        """What closes an assistant's turn before anything may follow."""
        ...

    def assistant(self, message: Message) -> Tokens:
        """An assistant turn that was not sampled here: its opening and text, up to its close."""
        ...

    def generation(self) -> Tokens:
        """What opens the turn that is to be sampled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTurn:
    """An assistant turn as the client got it."""

    content: str
    tool_call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """parent: the node that the sampled tokens will hang from, equal for equal requests."""

    parent: str
    num_input_tokens: int
    fork_reason: str | None


@dataclass(slots=True)
class _Walk:
    """Where a request has been followed to, and why it left known ground, if it did."""

    attempt: int
    tools: bytes
    cursor: str | None = None
    left: bool = False
    reason: str | None = None


class Matcher:
    """One execution's known structure over its tree. Mutated by `plan`, `sent` and `recorded`.

    A matcher made from a tree out of the log knows no message keys: it encodes such a message once
    more and finds the node by its tokens, since equal segments below one parent are one node.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._edges: dict[tuple[str | None, bytes], str] = {}
        self._turn_keys: dict[str, bytes] = {}
        self._turn_of_call: dict[str, str] = {}
        self._turn_of_text: dict[bytes, str] = {}
        self._ids_of_turn: dict[str, frozenset[str]] = {}
        self._tools: set[bytes] = set()
        self._recorded: set[str] = set(tree.nodes)
        self._attempt = max((n.sampled.attempt for n in tree.sampled() if n.sampled), default=0)

    def plan(
        self, messages: Sequence[Message], tools: Tools, *, attempt: int, encoder: Encoder
    ) -> Plan:
        """Finds or makes the path to sample from. Encodes what is not known: O(new content)."""
        walk = _Walk(attempt=attempt, tools=tools_key(tools))
        position = self._walk_head(walk, messages, tools, encoder)
        while position < len(messages):
            message = messages[position]
            known = self._known(walk.cursor, message)
            if known is not None:
                walk.cursor = known
                position += 1
            elif message.role == "assistant":
                self._carry(walk, message, encoder)
                position += 1
            else:
                position = self._encode_run(walk, messages, position, encoder)
        parent = self._open_turn(walk, encoder)
        self._tools.add(walk.tools)
        self._attempt = max(self._attempt, attempt)
        return Plan(
            parent=parent,
            num_input_tokens=self.tree.num_path_tokens(parent),
            fork_reason=walk.reason,
        )

    def sent(self, node: str, turn: SentTurn) -> None:
        """The sampled `node` went to the client as `turn`: its echo will match."""
        for identity in turn.tool_call_ids:
            self._turn_of_call[identity] = node
        if turn.tool_call_ids:
            self._ids_of_turn[node] = frozenset(turn.tool_call_ids)
        else:
            key = turn_text_key(turn.content)
            self._turn_keys[node] = key
            self._turn_of_text[key] = node

    def unrecorded(self, node: str) -> tuple[str | None, tuple[Segment, ...]]:
        """What a call sampled at `node` must tell the log: the parent that the log knows, and the
        segments from there to `node`, included."""
        segments = []
        cursor: str | None = node
        while cursor is not None and cursor not in self._recorded:
            step = self.tree.node(cursor)
            segments.append(
                Segment(
                    node=step.id,
                    parent=step.parent,
                    role=step.role,
                    token_ids=tuple(step.token_ids),
                )
            )
            cursor = step.parent
        return cursor, tuple(reversed(segments))

    def recorded(self, call: CallRecorded) -> None:
        """The log has `call`: folds it into the tree."""
        self.tree.evolve(call)
        self._recorded.update(segment.node for segment in call.segments)
        self._recorded.add(call.node)

    def _known(self, cursor: str | None, message: Message) -> str | None:
        if message.role == "assistant":
            turn = self._known_turn(cursor, message)
            if turn is not None:
                return turn
        return self._edges.get((cursor, input_key(message)))

    def _known_turn(self, cursor: str | None, message: Message) -> str | None:
        """The turn sampled right after `cursor` that the message echoes; the latest if several."""
        if cursor is None:
            return None
        openings = {child.id for child in self.tree.children(cursor) if child.role == GENERATION}
        if message.tool_calls:
            node = self._turn_with_calls(message)
            return node if node and self.tree.node(node).parent in openings else None
        key = turn_text_key(message.content)
        for opening in openings:
            for turn in reversed(self.tree.children(opening)):
                if self._turn_keys.get(turn.id) == key:
                    return turn.id
        return None

    def _turn_with_calls(self, message: Message) -> str | None:
        """The turn that was sent with exactly these tool-call ids."""
        ids = frozenset(call.id for call in message.tool_calls)
        node = self._turn_of_call.get(message.tool_calls[0].id)
        return node if node is not None and self._ids_of_turn[node] == ids else None

    def _walk_head(
        self, walk: _Walk, messages: Sequence[Message], tools: Tools, encoder: Encoder
    ) -> int:
        system = messages[0] if messages[0].role == "system" else None
        if not tools and system is None:
            return 0
        key = walk.tools + (input_key(system) if system else b"")
        self._step(walk, key, "system", lambda: encoder.head(tools, system))
        return 1 if system else 0

    def _carry(self, walk: _Walk, message: Message, encoder: Encoder) -> None:
        """An assistant turn that was not sampled here: another prefix's, or the client's own."""
        source = (
            self._turn_with_calls(message)
            if message.tool_calls
            else self._turn_of_text.get(turn_text_key(message.content))
        )

        def tokens() -> Tokens:
            lead = self._turn_end(walk.cursor, encoder)
            if source is None:
                return lead + encoder.assistant(message)
            return lead + encoder.generation() + self.tree.node(source).token_ids

        self._step(walk, input_key(message), ASSISTANT, tokens)
        if source is not None and walk.reason == "new_root":
            walk.reason = "compaction"

    def _encode_run(
        self, walk: _Walk, messages: Sequence[Message], position: int, encoder: Encoder
    ) -> int:
        """Encodes the messages up to the next assistant turn; returns the position after them."""
        end = position
        while end < len(messages) and messages[end].role != "assistant":
            end += 1
        run = messages[position:end]
        before = None if walk.cursor is None else self.tree.node(walk.cursor)
        if before is not None and before.role == ASSISTANT:
            encoded = encoder.inputs_after_turn(before.token_ids, run)
        else:
            encoded = encoder.inputs(run)
        for message, tokens in zip(run, encoded, strict=True):
            self._add(walk, input_key(message), message.role, tokens)
        return end

    def _open_turn(self, walk: _Walk, encoder: Encoder) -> str:
        """The generation node below the cursor. One that is there already was sampled from."""
        before = len(self.tree.nodes)
        self._step(
            walk,
            _GENERATION_KEY,
            GENERATION,
            lambda: self._turn_end(walk.cursor, encoder) + encoder.generation(),
        )
        assert walk.cursor is not None
        if len(self.tree.nodes) == before and walk.reason is None:
            walk.reason = "repeat"
        return walk.cursor

    def _turn_end(self, cursor: str | None, encoder: Encoder) -> Tokens:
        node = None if cursor is None else self.tree.node(cursor)
        if node is None or node.role != ASSISTANT:
            return array("i")
        return encoder.turn_end(node.token_ids)

    def _step(self, walk: _Walk, key: bytes, role: str, encode: Callable[[], Tokens]) -> None:
        known = self._edges.get((walk.cursor, key))
        if known is None:
            self._add(walk, key, role, encode())
        else:
            walk.cursor = known

    def _add(self, walk: _Walk, key: bytes, role: str, tokens: Tokens) -> None:
        identity = node_id(walk.cursor, tokens)
        if identity not in self.tree.nodes:
            if not walk.left:
                walk.left, walk.reason = True, self._why(walk, role)
            self.tree.add_input(walk.cursor, role, tokens)
        self._edges[walk.cursor, key] = identity
        walk.cursor = identity

    def _why(self, walk: _Walk, role: str) -> str | None:
        """Why a new node below the cursor leaves an earlier request's path, if it does."""
        siblings = self.tree.children(walk.cursor)
        if not siblings:
            return None
        if walk.attempt > self._attempt:
            return "new_attempt"
        if walk.cursor is None or self._is_head(walk.cursor):
            changed = bool(self._tools) and walk.tools not in self._tools
            return "tools_changed" if changed else "new_root"
        if role != ASSISTANT and any(node.role == GENERATION for node in siblings):
            return "dropped_turn"
        if self.tree.node(walk.cursor).sampled is not None:
            return "branch"
        return "edited_history"

    def _is_head(self, node: str) -> bool:
        """Whether the path to `node` is only what opens a conversation."""
        head = self.tree.node(node)
        return head.parent is None and head.role == "system"
