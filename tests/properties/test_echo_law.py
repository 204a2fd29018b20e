"""The law `echo`: what agent programs do to their history is no other history, and nothing else is
taken for the same."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gyre.contracts.events.calls import CallRecorded
from gyre.core.matching import Plan, SentTurn
from gyre.core.messages import Message, ToolCall
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, ToyEncoder

TOOLS: list[Mapping[str, Any]] = [{"type": "function", "function": {"name": "run"}}]
HEAD = Message(role="system", content="You are a program.")
ARGUMENTS = ('{"a": 1.0, "b": "x"}', '{"b":"x","a":1}', '{"__unparsed": true}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One text of an input. kind: user, reminder or tool."""

    kind: str
    text: str
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An assistant's turn as it went out."""

    text: str
    ids: tuple[str, ...] = ()

    @property
    def is_blank(self) -> bool:
        return not self.ids and not self.text.strip()


@dataclass
class Client(MatchedCalls):
    """An agent program with a true history, which it writes down anew for every request."""

    rng: random.Random = field(default_factory=random.Random)
    encoder: ToyEncoder = field(default_factory=ToyEncoder)
    history: list[Text | Turn] = field(default_factory=list)
    num_texts: int = 0

    def say(self, kind: str, tool_call_id: str | None = None) -> None:
        self.num_texts += 1
        text = f"{kind} says {self.num_texts}\nand more"
        self.history.append(Text(kind=kind, text=text, tool_call_id=tool_call_id))

    def messages(self) -> list[Message]:
        """The history in one of the forms that it may come back in."""
        found, run = [HEAD], list[Text]()
        for item in self.history:
            if isinstance(item, Text):
                run.append(item)
            elif not item.is_blank:
                found += [*self._inputs(run), self._echo(item)]
                run = []
        return [*found, *self._inputs(run)]

    def _inputs(self, run: Sequence[Text]) -> list[Message]:
        tools = [text for text in run if text.kind == "tool"]
        texts = [(text.kind, text.text) for text in run if text.kind == "user"]
        reminders = [text.text for text in run if text.kind == "reminder"]
        behind = []
        for reminder in reminders:
            if texts and self.rng.random() < 0.6:
                at = self.rng.randrange(len(texts) + 1)
                told = f"<system-reminder>\n{reminder}\n</system-reminder>"
                texts.insert(at, ("reminder", told))
            else:
                behind.append(Message(role="system", content=reminder))
        messages = [self._tool(text) for text in tools]
        blocks = [text for _, text in texts]
        while blocks:
            num = self.rng.randint(1, len(blocks))
            cut, blocks = blocks[:num], blocks[num:]
            merged = [f"{text}\n" if self.rng.random() < 0.5 else text for text in cut[:-1]]
            messages.append(Message.of_blocks("user", [*merged, cut[-1]]))
        return messages + behind

    def _tool(self, text: Text) -> Message:
        return Message(role="tool", content=text.text, tool_call_id=text.tool_call_id)

    def _echo(self, turn: Turn) -> Message:
        pad = self.rng.choice(("", " ", "\n"))
        if not turn.ids:
            return Message(role="assistant", content=f"{pad}{turn.text}{pad}")
        calls = [
            ToolCall(id=identity, name="run", arguments=self.rng.choice(ARGUMENTS))
            for identity in turn.ids
        ]
        self.rng.shuffle(calls)
        text = self.rng.choice((turn.text, "", "t1\nt2"))
        return Message(role="assistant", content=text, tool_calls=tuple(calls))

    def plan(self) -> Plan:
        return self.matcher.plan(self.messages(), TOOLS, attempt=1, encoder=self.encoder)

    def call(self, kind: str) -> Plan:
        """One request, answered by a turn of `kind`: text, blank, tools or cut."""
        plan = self.plan()
        name = f"e-c{len(self.log):05d}"
        ids = tuple(f"{name}-t{index}" for index in range(2)) if kind == "tools" else ()
        turn = Turn(text=" \n" if kind == "blank" else f"answer of {name}", ids=ids)
        output = (300 + len(self.log), *((CLOSE,) if kind != "cut" else ()))
        reasoning = f"thinking of {name}"
        sent = SentTurn(content=turn.text, tool_call_ids=ids, reasoning=reasoning)
        self.record(plan, output, sent)
        self.history.append(turn)
        for identity in ids:
            self.say("tool", identity)
        return plan


KINDS = ("text", "tools", "blank", "cut")
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=8,
)
seeds = st.integers(0, 2**32)


def played(acts: list[tuple[str, int, int, bool]], seed: int) -> tuple[Client, list[Plan]]:
    """A client after a call for each act: its inputs, then the kind of the answer."""
    client = Client(rng=random.Random(seed))
    plans = []
    for kind, num_users, num_reminders, restarts in acts:
        for _ in range(num_users):
            client.say("user")
        for _ in range(num_reminders):
            client.say("reminder")
        if not client.history or isinstance(client.history[-1], Turn):
            client.say("user")
        plans.append(client.call(kind))
        if restarts:
            client.restart()
    return client, plans


@given(steps, seeds)
def test_echo_a_history_in_another_form_goes_on_where_it_was(
    acts: list[tuple[str, int, int, bool]], seed: int
) -> None:
    client, plans = played(acts, seed)
    tree = client.matcher.tree
    assert [plan.fork_reason for plan in plans] == [None] * len(plans)
    last = array("i")
    for event, plan in zip(client.log, plans, strict=True):
        assert isinstance(event, CallRecorded)
        tokens = tree.path_tokens(plan.parent)
        assert tokens[: len(last)] == last
        last = tree.path_tokens(event.node)


@given(steps, seeds)
def test_echo_no_text_is_encoded_twice(acts: list[tuple[str, int, int, bool]], seed: int) -> None:
    client, _ = played(acts, seed)
    said = "".join(client.encoder.encoded)
    for number in range(1, client.num_texts + 1):
        assert said.count(f" says {number}\nand more") <= 1
    assert "answer of" not in said


@given(steps, seeds)
def test_echo_needs_no_tokenizer_for_what_was_encoded(
    acts: list[tuple[str, int, int, bool]], seed: int
) -> None:
    client, _ = played(acts, seed)
    client.say("user")
    first = client.plan()
    client.encoder.gone = True
    again = {client.plan().parent for _ in range(3)}
    assert again == {first.parent}


@given(steps, seeds, st.data())
def test_echo_a_changed_character_is_never_taken_for_what_is_known(
    acts: list[tuple[str, int, int, bool]], seed: int, data: st.DataObject
) -> None:
    client, _ = played(acts, seed)
    if isinstance(client.history[-1], Turn):
        client.say("user")
    messages = client.messages()
    editable = [
        index
        for index, message in enumerate(messages)
        if message.content.strip() and not message.tool_calls
    ]
    index = data.draw(st.sampled_from(editable))
    edited = _edit(messages[index], data)
    known = client.matcher.plan(messages, TOOLS, attempt=1, encoder=client.encoder)
    changed = [*messages[:index], edited, *messages[index + 1 :]]
    plan = client.matcher.plan(changed, TOOLS, attempt=1, encoder=client.encoder)
    assert plan.parent != known.parent


def _edit(message: Message, data: st.DataObject) -> Message:
    """Another character in one place of a text, none that only stands at its end."""
    blocks = list(message.blocks or (message.content,))
    block = data.draw(st.integers(0, len(blocks) - 1))
    text = blocks[block]
    at = data.draw(st.integers(0, len(text.strip()) - 1)) + len(text) - len(text.lstrip())
    new = data.draw(st.sampled_from(("#", "", "é")))
    blocks[block] = text[:at] + new + text[at + 1 :]
    if message.role == "assistant":
        return replace(message, content=blocks[0])
    return Message.of_blocks(message.role, blocks, tool_call_id=message.tool_call_id)
