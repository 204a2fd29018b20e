"""Sampled turns as they went out: known again by their tool-call ids, else by their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.core.matching.echoes import turn_text_key
from gyre.core.messages import Message
from gyre.core.tree import Tree
from gyre.core.tree_nodes import GENERATION, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTurn:
    """An assistant turn as the client got it. reasoning: the thinking, "" for none; None when a
    client's echo of it is not to be compared."""

    content: str
    tool_call_ids: tuple[str, ...] = ()
    reasoning: str | None = None

    @property
    def is_blank(self) -> bool:
        """Nothing to be seen: clients drop such a turn and ask for another."""
        return not self.tool_call_ids and not self.content.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """A turn with tool calls. after: what it was sampled right after. ids: sorted."""

    node: str
    after: str | None
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A turn without calls. thinking: key of its reasoning, None if that is not compared."""

    key: bytes
    thinking: bytes | None
    blank: bool


class SentTurns:
    """The turns of one execution's tree that clients may send back. Mutated by `add`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._of_call: dict[str, _Calls] = {}
        self._texts: dict[str, _Text] = {}
        self._of_text: dict[bytes, str] = {}
        self._places: dict[str, int] = {}

    def add(self, node: str, turn: SentTurn) -> None:
        """The sampled `node` went out as `turn`."""
        if turn.tool_call_ids:
            opening = self._tree.node(node).parent
            after = None if opening is None else self._tree.node(opening).parent
            calls = _Calls(node=node, after=after, ids=tuple(sorted(turn.tool_call_ids)))
            self._of_call.update(dict.fromkeys(turn.tool_call_ids, calls))
            self._places.update((call, place) for place, call in enumerate(turn.tool_call_ids))
            return
        thinking = None if turn.reasoning is None else turn_text_key(turn.reasoning)
        key = turn_text_key(turn.content)
        self._texts[node] = _Text(key=key, thinking=thinking, blank=turn.is_blank)
        self._of_text[key] = node

    def echoed_at(self, cursor: str | None, message: Message) -> str | None:
        """The turn sampled right after `cursor` that the message echoes; the latest if several."""
        if cursor is None:
            return None
        if message.tool_calls:
            turn = self._with_calls(message)
            return turn.node if turn is not None and turn.after == cursor else None
        key = turn_text_key(message.content)
        thinking = _thinking(message)
        for sampled in self._sampled_at(cursor):
            text = self._texts.get(sampled.id)
            if text is not None and text.key == key and _same_thinking(text, thinking):
                return sampled.id
        return None

    def echoed_anywhere(self, message: Message) -> str | None:
        """The turn that the message echoes, below whatever prefix; the latest if several."""
        if message.tool_calls:
            turn = self._with_calls(message)
            return None if turn is None else turn.node
        node = self._of_text.get(turn_text_key(message.content))
        if node is None or not _same_thinking(self._texts[node], _thinking(message)):
            return None
        return node

    def place(self, tool_call_id: str | None) -> int | None:
        """Which of its turn's calls this one was, from 0; None for a call that was not sent."""
        return None if tool_call_id is None else self._places.get(tool_call_id)

    def blank_at(self, cursor: str | None) -> list[str]:
        """Turns right after `cursor` that were delivered and showed nothing, the latest first.

        Empty if the last one that arrived there showed something: then the client has that one.
        """
        if cursor is None:
            return []
        found = []
        for turn in self._sampled_at(cursor):
            if turn.sampled is None or turn.sampled.status != "committed":
                continue
            text = self._texts.get(turn.id)
            if text is not None and text.blank:
                found.append(turn.id)
            elif not found:
                return []
        return found

    def _with_calls(self, message: Message) -> _Calls | None:
        """The turn that was sent with exactly these tool-call ids."""
        calls = message.tool_calls
        turn = self._of_call.get(calls[0].id)
        if turn is None or len(turn.ids) != len(calls):
            return None
        if len(calls) == 1 or tuple(sorted(call.id for call in calls)) == turn.ids:
            return turn
        return None

    def _sampled_at(self, cursor: str) -> Iterator[Node]:
        for opening in self._tree.children(cursor):
            if opening.role == GENERATION:
                yield from reversed(self._tree.children(opening.id))


def _thinking(message: Message) -> bytes | None:
    return turn_text_key(message.reasoning) if message.reasoning else None


def _same_thinking(text: _Text, thinking: bytes | None) -> bool:
    """Clients may leave the thinking out, or it was not kept; they do not change it."""
    return thinking is None or text.thinking is None or text.thinking == thinking
