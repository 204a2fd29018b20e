"""The walk of a request along an execution's tree.

Invariants (properties `tito` and `echo`):
- a message that matches is never encoded again: its stored tokens are reused, so the tokenizer may
  be gone for all that old turns need;
- what differs in any character is never taken for what is known, but for what `echoes` lists;
- an assistant turn is known by the tool-call ids that it was sent with, else by the text that was
  sent, never by re-tokenising the client's echo;
- a turn that was delivered and showed nothing stays on the path when the client leaves it out and
  goes on right there;
- a turn that turns up below another prefix (a compaction keeps the last rounds) is carried over
  with its sampled tokens, as context;
- a request that does not go on where an earlier one ended has a fork reason (`reasons`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from gyre.contracts.events.calls import CallRecorded, RequestRole, Segment
from gyre.core.matching.echoes import assistant_key, head_keys, input_keys, tools_key
from gyre.core.matching.encoder import CannotBridge, Encoder, Tokens, Tools
from gyre.core.matching.inputs import InputRun, Keys, KnownInputs
from gyre.core.matching.reasons import ForkReasons, is_head
from gyre.core.matching.trail import Changes, Trail
from gyre.core.matching.turns import SentTurn, SentTurns
from gyre.core.matching.walk import (
    Opening,
    Plan,
    Walk,
    opening_of,
    placed,
    role_before,
    segments_to,
    told_turn,
    turn_opening,
)
from gyre.core.messages import Message
from gyre.core.tree import Tree
from gyre.core.tree_nodes import ASSISTANT, GENERATION, node_id


class Matcher:
    """One execution's known structure over its tree. Mutated by `plan`, `undo`, `sent` and
    `recorded`.

    Keys of inputs come back with the log. Of a log that has none, a message is encoded once more
    and its node found by the tokens, since equal segments below one parent are one node.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._inputs = KnownInputs(tree)
        self._turns = SentTurns(tree)
        self._reasons = ForkReasons(tree)
        self._recorded: set[str] = set(tree.nodes)
        self._changes = Changes()

    def opening(self, messages: Sequence[Message], tools: Tools) -> Opening:
        """How a request begins: what its origin may be read from before it is planned."""
        system = messages[0] if messages[0].role == "system" else None
        key = tools_key(tools)
        keys = head_keys(key, system)
        # What the program asked for itself, a title for one, says nothing of its agents' heads.
        asked = ((node, node.sampled) for node in self.tree.sampled())
        first = next((node for node, one in asked if one and one.request_role != "other"), None)
        head = None if first is None else self.tree.path(first.id)[0]
        if head is None or not is_head(head) or (system is None and not tools):
            return Opening(tools=key, keys=keys, is_first=True)
        bare = self._inputs.exact(None, head_keys(tools_key(()), None))
        is_first = head.id in (bare, self._inputs.exact(None, keys))
        return Opening(tools=key, keys=keys, is_first=is_first)

    def plan(
        self,
        messages: Sequence[Message],
        tools: Tools,
        *,
        attempt: int,
        encoder: Encoder,
        request_role: RequestRole = "main",
        agent: str | None = None,
        opening: Opening | None = None,
        trail: Trail | None = None,
    ) -> Plan:
        """Finds or makes the path to sample from. Encodes what is not known: O(new content).

        opening: of these messages and tools, if it was asked for. trail: of this walk, to be made.
        """
        walk = Walk(
            attempt=attempt,
            role=request_role,
            agent=agent,
            opening=opening or self.opening(messages, tools),
            encoder=encoder,
            trail=trail,
        )
        position = self._walk_head(walk, messages, tools)
        position = self._follow(walk, messages) or position
        while position < len(messages):
            message = messages[position]
            walk.look(self.tree)
            if message.role == "assistant":
                self._walk_turn(walk, message)
                position += 1
                if walk.trail is not None and walk.is_known:
                    walk.trail.mark(position, walk.cursor)
            elif (known := self._alone(walk, messages, position)) is not None:
                walk.cursor = known
                position += 1
            else:
                position = self._walk_inputs(walk, messages, position)
        parent = self._open_turn(walk)
        return Plan(
            parent=parent,
            num_input_tokens=self.tree.num_path_tokens(parent),
            fork_reason=walk.reason,
            added=tuple(walk.added),
        )

    def _follow(self, walk: Walk, messages: Sequence[Message]) -> int:
        """Goes where an earlier walk of the same messages went; returns the position after them."""
        trail = walk.trail
        mark = None if trail is None else trail.begin(self._changes, self.tree, walk.cursor)
        if mark is None:
            return 0
        walk.cursor, walk.turn = mark.cursor, messages[mark.num_messages - 1]
        return mark.num_messages

    def undo(self, plan: Plan) -> None:
        """The request will not be asked: what only it brought is gone from the tree."""
        for identity in reversed(plan.added):
            node = self.tree.node(identity)
            if self.tree.children(identity):
                return
            if node.known_by:
                self._inputs.forget(node.parent, node.known_by)
                self._changes.at(node.parent)
            self.tree.discard(identity)

    def sent(self, node: str, turn: SentTurn) -> None:
        """The sampled `node` went to the client as `turn`: its echo will match."""
        opening = self.tree.node(node).parent
        if opening is not None:
            self._changes.at(self.tree.node(opening).parent)
        self._turns.add(node, turn)

    def unrecorded(self, node: str) -> tuple[str | None, tuple[Segment, ...]]:
        """What a call sampled at `node` must tell the log: the parent that the log knows, and the
        segments from there to `node`, included."""
        return segments_to(self.tree, self._recorded, node)

    def recorded(self, call: CallRecorded) -> None:
        """The log has `call`: folds it into the tree."""
        self.tree.evolve(call)
        self._reasons.recorded(call)
        self._recorded.update(segment.node for segment in call.segments)
        self._recorded.add(call.node)

    def _walk_head(self, walk: Walk, messages: Sequence[Message], tools: Tools) -> int:
        """What opens the conversation; returns the position after it."""
        system = messages[0] if messages[0].role == "system" else None
        keys = walk.opening.keys
        known = self._inputs.exact(None, keys)
        if known is not None:
            walk.cursor = known
            return 1 if system else 0
        tokens = walk.encoder.head(tools, system)
        if tools or system is not None or tokens:
            self._add(walk, keys, "system", tokens)
        return 1 if system else 0

    def _alone(self, walk: Walk, messages: Sequence[Message], position: int) -> str | None:
        """The node of an input that stands as it is known."""
        message = messages[position]
        if message.role == "tool":
            behind = messages[position + 1 : position + 2]
            if behind and behind[0].role == "tool":
                return None
        return self._inputs.exact(walk.cursor, input_keys(message))

    def _walk_inputs(self, walk: Walk, messages: Sequence[Message], start: int) -> int:
        """What is read from `start` up to the next turn, cut in whatever way; returns its end."""
        end = start
        while end < len(messages) and messages[end].role != "assistant":
            end += 1
        run = InputRun(messages[start:end])
        while run:
            walk.look(self.tree)
            known = self._inputs.step(walk.cursor, run)
            if known is None:
                known = self._pass_blank(walk, run)
            if known is None:
                self._encode(walk, [placed(self._turns, walk, message) for message in run.rest()])
                break
            walk.cursor = known
        return end

    def _pass_blank(self, walk: Walk, run: InputRun) -> str | None:
        """The turn at the cursor that the client left out since it showed nothing, or the node
        behind one that the run goes on to."""
        blank = self._turns.blank_at(walk.cursor)
        if blank:
            walk.is_known = False
            walk.turn = Message(role="assistant", content="")
        for turn in blank:
            known = self._inputs.step(turn, run)
            if known is not None:
                return known
        return blank[0] if blank else None

    def _encode(self, walk: Walk, messages: Sequence[Message]) -> None:
        """New inputs below the cursor, a node a message. Those that are told together are one:
        results that follow each other, and what the encoder tells within the one before it."""
        walk.is_known = False
        encoded = self._tokens(walk, messages)
        start = 0
        while start < len(messages):
            end = start + 1
            while end < len(messages) and (
                not encoded[end] or messages[end].role == messages[end - 1].role == "tool"
            ):
                end += 1
            keys: Keys = ()
            tokens = array("i")
            for message, part in zip(messages[start:end], encoded[start:end], strict=True):
                keys += input_keys(message)
                tokens += part
            self._add(walk, keys, messages[end - 1].role, tokens)
            start = end

    def _tokens(self, walk: Walk, messages: Sequence[Message]) -> list[Tokens]:
        before = None if walk.cursor is None else self.tree.node(walk.cursor)
        if before is None or before.role != ASSISTANT:
            return walk.encoder.inputs(messages, after=role_before(self.tree, walk))
        turn, opening = before.token_ids, opening_of(self.tree, before)
        try:
            return walk.encoder.inputs_after_turn(turn, messages, opening=opening)
        except CannotBridge:
            if before.sampled is None or before.parent is None:
                raise
            self._retell(walk, before.parent)
        assert walk.cursor is not None
        told = self.tree.node(walk.cursor).token_ids
        return walk.encoder.inputs_after_turn(told, messages, opening=array("i"))

    def _retell(self, walk: Walk, opening: str) -> None:
        """Puts the turn that was sampled at `opening` beside itself, as the template tells it."""
        message = walk.turn
        assert message is not None
        walk.cursor = self.tree.node(opening).parent
        known = self._inputs.exact(walk.cursor, (assistant_key(message),))
        if known is not None:
            walk.cursor = known
            return
        walk.left, walk.reason = True, walk.reason or "template"
        self._add(walk, (assistant_key(message),), ASSISTANT, told_turn(self.tree, walk, message))

    def _walk_turn(self, walk: Walk, message: Message) -> None:
        walk.turn = message
        known = self._turns.echoed_at(walk.cursor, message)
        if known is None:
            known = self._inputs.exact(walk.cursor, (assistant_key(message),))
        if known is None:
            self._carry(walk, message)
        else:
            walk.cursor = known

    def _carry(self, walk: Walk, message: Message) -> None:
        """An assistant turn that was not sampled here: another prefix's, or the client's own."""
        walk.is_known = False
        source = self._turns.echoed_anywhere(message)
        if source is None:
            tokens = told_turn(self.tree, walk, message)
        else:
            turn = self.tree.node(source)
            tokens = turn_opening(self.tree, walk, carried=turn) + turn.token_ids
        self._add(walk, (assistant_key(message),), ASSISTANT, tokens)
        if source is not None:
            walk.reason = self._reasons.carrying(walk.reason, source)

    def _open_turn(self, walk: Walk) -> str:
        """The generation node below the cursor. One that is there already was sampled from."""
        for child in self.tree.children(walk.cursor):
            if child.role == GENERATION:
                if walk.reason is None:
                    walk.reason = self._reasons.reopened(child.id, walk)
                return child.id
        self._add(walk, (), GENERATION, turn_opening(self.tree, walk))
        assert walk.cursor is not None
        return walk.cursor

    def _add(self, walk: Walk, keys: Keys, role: str, tokens: Tokens) -> None:
        identity = node_id(walk.cursor, tokens)
        if identity not in self.tree.nodes:
            if not walk.left:
                walk.left = True
                walk.reason = self._reasons.leaving(walk, role)
            self.tree.add_input(walk.cursor, role, tokens, keys)
            walk.added.append(identity)
        if keys:
            self._inputs.learn(walk.cursor, keys, identity)
            self._changes.at(walk.cursor)
        walk.cursor = identity
