"""The law of trails: where a request goes on is the same whether or not its walk took an earlier
one's way, and a history that only grows is walked from its last turn."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gyre.core.matching import SentTurn, Trail
from gyre.core.messages import Message, ToolCall
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, ToyEncoder

TOOLS: list[Mapping[str, Any]] = [{"type": "function", "function": {"name": "run"}}]
TEXTS = ("a", "b", "<system-reminder>\nr\n</system-reminder>")
UNBRIDGED = 77


class OddEncoder(ToyEncoder):
    """Has turns that its template does not keep."""

    def keeps(self, turn: array[int], *, is_sampled: bool) -> bool:
        return not (is_sampled and UNBRIDGED in turn)


@dataclass
class Side:
    """One of the two that are compared. with_trails: whether its walks take others' ways."""

    with_trails: bool
    calls: MatchedCalls = field(default_factory=MatchedCalls)
    trails: list[tuple[Trail, tuple[Message, ...]]] = field(default_factory=list)

    def ask(self, messages: tuple[Message, ...], before: int | None, tools: bool) -> Any:
        trail = None
        if self.with_trails:
            trail = Trail()
            if before is not None:
                earlier, walked = self.trails[before % len(self.trails)]
                trail = earlier.next(0, num_same(messages, walked))
            self.trails.append((trail, messages))
        return self.calls.matcher.plan(
            messages, TOOLS if tools else [], attempt=1, encoder=OddEncoder(), trail=trail
        )


def num_same(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """How many messages are the same objects, from the first on."""
    pairs = enumerate(zip(messages, others, strict=False))
    return next((n for n, (a, b) in pairs if a is not b), min(len(messages), len(others)))


@st.composite
def inputs(draw: st.DrawFn, turn: Message | None) -> list[Message]:
    """What may follow a turn: its results, then texts, reminders among them."""
    found = [
        Message(role="tool", content=draw(st.sampled_from(TEXTS)), tool_call_id=call.id)
        for call in (turn.tool_calls if turn else ())
    ]
    for _ in range(draw(st.integers(0 if found else 1, 2))):
        blocks = draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=2))
        found.append(Message.of_blocks(draw(st.sampled_from(["user", "system"])), blocks))
    return draw(st.permutations(found)) if draw(st.booleans()) else found


def copied(message: Message) -> Message:
    """Equal, and another object, as an API reads it anew."""
    return replace(message)


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_trail_changes_nothing(data: st.DataObject) -> None:
    draw = data.draw
    sides = (Side(with_trails=True), Side(with_trails=False))
    histories: list[tuple[Message, ...]] = [()]
    for number in range(draw(st.integers(2, 8))):
        base = list(draw(st.sampled_from(histories[-3:])))
        edit = draw(st.sampled_from(["no", "no", "no", "drop", "cut", "text", "copy"]))
        place = draw(st.integers(0, max(0, len(base) - 1)))
        if base and edit == "drop":
            del base[place]
        elif base and edit == "cut":
            del base[place:]
        elif base and edit == "text" and base[place].role != "tool":
            base[place] = replace(base[place], content=draw(st.sampled_from(TEXTS)), blocks=())
        elif base and edit == "copy":
            base = [*base[:place], *map(copied, base[place:])]
        if not base or base[-1].role == "assistant":
            base += draw(inputs(base[-1] if base else None))
        messages = tuple(base)
        before = draw(st.integers(0, 3)) if number and draw(st.booleans()) else None
        before = -1 if number and before is None else before
        tools = draw(st.integers(0, 5)) > 0
        plans = [side.ask(messages, before, tools) for side in sides]
        assert plans[0] == plans[1]
        what = draw(st.sampled_from(["answer", "answer", "answer", "blank", "undo", "lose"]))
        ids = tuple(f"t{number}-{n}" for n in range(draw(st.integers(0, 2))))
        text = "" if what == "blank" else draw(st.sampled_from(TEXTS))
        output = [50 + number, UNBRIDGED if draw(st.integers(0, 4)) == 0 else 51, CLOSE]
        turn = SentTurn(content=text, tool_call_ids=() if what == "blank" else ids, reasoning="")
        for side, plan in zip(sides, plans, strict=True):
            if what == "undo":
                side.calls.matcher.undo(plan)
            else:
                side.calls.record(plan, output, turn)
                if what == "lose":
                    side.calls.lose()
        assert sides[0].calls.matcher.tree.nodes == sides[1].calls.matcher.tree.nodes
        called = tuple(ToolCall(id=one, name="run", arguments="{}") for one in turn.tool_call_ids)
        echo = Message(role="assistant", content=text, tool_calls=called)
        drops = what == "undo" or (what == "blank" and draw(st.booleans()))
        histories.append(messages if drops else (*messages, echo))


def test_a_growing_history_is_walked_from_its_last_turn() -> None:
    calls, trail = MatchedCalls(), Trail()
    messages: tuple[Message, ...] = (Message(role="user", content="go"),)
    for number in range(20):
        trail = trail.next(0, max(0, len(messages) - 2))
        plan = calls.matcher.plan(messages, TOOLS, attempt=1, encoder=ToyEncoder(), trail=trail)
        assert plan.fork_reason is None
        # All that was looked up anew is behind the turn before the last.
        taken_over = trail.marks[-2].num_lookups if len(trail.marks) > 1 else 0
        assert len(trail.cursors) - taken_over <= 5
        assert trail.before is None
        calls.record(plan, [50, CLOSE], SentTurn(content="", tool_call_ids=(f"c{number}",)))
        call = ToolCall(id=f"c{number}", name="run", arguments="{}")
        messages += (
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="tool", content="x", tool_call_id=call.id),
        )
    assert len(trail.marks) == 19
