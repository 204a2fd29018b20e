"""The laws `tito` and `targets`: exact tokens whatever a client does to its history."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.events.calls import CallRecorded, CallsSealed, CallUndelivered, Segment
from gyre.core.matching import Plan, SentTurn
from gyre.core.messages import Message, ToolCall
from gyre.core.tree import Tree, TreeError, fold
from gyre.core.tree_nodes import node_id, sampled_node_id
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, GENERATION, ToyEncoder
from gyre.testkit.tree_paths import target_leaves

TOOLS: list[Mapping[str, Any]] = [{"type": "function", "function": {"name": "run"}}]


@dataclass
class Agent(MatchedCalls):
    """A client and the proxy's records of it. engine: what each call's engine was given."""

    encoder: ToyEncoder = field(default_factory=ToyEncoder)
    history: list[Message] = field(default_factory=list)
    engine: dict[str, array[int]] = field(default_factory=dict)
    num_messages: int = 0

    def say(self, role: str = "user", **extra: Any) -> None:
        self.num_messages += 1
        text = f"{role} says {self.num_messages}"
        self.history.append(Message(role=role, content=text, **extra))  # type: ignore[arg-type]

    def plan(self) -> Plan:
        return self.matcher.plan(self.history, TOOLS, attempt=1, encoder=self.encoder)

    def call(self, outcome: str = "committed", *, tools: bool = False, closed: bool = True) -> None:
        """One call whose answer the client keeps, if it gets one."""
        plan = self.plan()
        name = f"e-c{len(self.log):05d}"
        self.engine[name] = self.matcher.tree.path_tokens(plan.parent)
        assert len(self.engine[name]) == plan.num_input_tokens
        output = (300 + len(self.engine), 301, *((CLOSE,) if closed else ()))
        ids = (f"{name}-t0", f"{name}-t1") if tools else ()
        turn = SentTurn(content="" if tools else f"answer of {name}", tool_call_ids=ids)
        if outcome != "committed":
            self.record(plan, output, None, outcome=outcome)
            return
        self.record(plan, output, turn)
        calls = tuple(ToolCall(id=i, name="run", arguments='{"a": 1}') for i in ids)
        self.history.append(Message(role="assistant", content=turn.content, tool_calls=calls))
        for identity in ids:
            self.say("tool", tool_call_id=identity)


def _act(agent: Agent, act: str, at: int) -> None:
    turns = [i for i, message in enumerate(agent.history) if message.role == "assistant"]
    match act:
        case "drop" if turns:
            del agent.history[turns[at % len(turns)]]
        case "edit" if turns:
            index = turns[at % len(turns)]
            agent.history[index] = Message(role="assistant", content=f"never said {at}")
        case "compact" if turns:
            index = turns[at % len(turns)]
            agent.history[:index] = []
            agent.history.insert(0, Message(role="user", content=f"a summary {at}"))
        case "forget":
            del agent.history[max(1, len(agent.history) // 2) :]
        case "restart":
            agent.restart()
        case "abort":
            agent.say()
            agent.call("aborted")
        case "lose" if agent.engine:
            agent.lose()
        case "tools":
            agent.say()
            agent.call(tools=True)
        case "cut":
            agent.say()
            agent.call(closed=False)
        case "again" if agent.history:
            agent.call()
        case _:
            agent.say()
            agent.call()


ACTS = ("go", "tools", "cut", "again", "drop", "edit", "compact", "forget", "abort", "lose")
acts = st.lists(st.tuples(st.sampled_from((*ACTS, "restart")), st.integers(0, 9)), max_size=14)


@given(acts)
def test_tito_the_recorded_context_is_what_the_engine_was_given(
    steps: list[tuple[str, int]],
) -> None:
    agent = Agent()
    for act, at in steps:
        _act(agent, act, at)

    tree = fold(agent.log)
    assert tree.num_calls == len(agent.engine)
    for call, given_tokens in agent.engine.items():
        assert tree.context_tokens(tree.calls[call]) == given_tokens
    assert tree.nodes.keys() <= agent.matcher.tree.nodes.keys()
    for event in agent.log:
        if isinstance(event, CallRecorded):
            node = tree.node(event.node)
            assert tuple(node.token_ids) == event.output_ids
            assert node.sampled is not None
            assert tuple(node.sampled.logprobs) == event.output_logprobs


@given(acts)
def test_tito_old_turns_match_without_a_tokenizer(steps: list[tuple[str, int]]) -> None:
    agent = Agent()
    agent.say()
    agent.call()
    for act, at in steps:
        _act(agent, act, at)
    agent.say()
    first = agent.plan()
    agent.encoder.gone = True
    assert agent.plan().parent == first.parent


@given(acts)
def test_tito_a_message_is_encoded_once_on_its_path(steps: list[tuple[str, int]]) -> None:
    agent = Agent()
    for act, at in steps:
        if act in ("go", "tools", "cut", "again", "abort", "lose"):
            _act(agent, act, at)
    assert len(agent.encoder.encoded) == len(set(agent.encoder.encoded))


@given(acts)
def test_tito_every_fork_has_a_reason(steps: list[tuple[str, int]]) -> None:
    agent = Agent()
    for act, at in steps:
        _act(agent, act, at)
    ends: set[str | None] = {None}
    for event in agent.log:
        if not isinstance(event, CallRecorded):
            continue
        known = event.parent in ends
        assert known or event.fork_reason is not None
        ends.discard(event.parent)
        ends.add(event.node)


@given(acts)
def test_targets_are_the_delivered_turns_each_exactly_once(steps: list[tuple[str, int]]) -> None:
    agent = Agent()
    for act, at in steps:
        _act(agent, act, at)
    committed = [
        e.call for e in agent.log if isinstance(e, CallRecorded) and e.outcome == "committed"
    ]
    lost = {event.call for event in agent.log if isinstance(event, CallUndelivered)}
    expected = [call for call in committed if call not in lost]

    tree = fold(agent.log)
    targets = tree.targets()
    assert [node.sampled.call for node in targets if node.sampled] == expected
    covered = {
        step.id for leaf in target_leaves(tree) for step in tree.path(leaf.id) if step.is_target
    }
    assert covered == {node.id for node in targets}
    leaves = {leaf.id for leaf in target_leaves(tree)}
    for leaf in leaves:
        assert not leaves & {step.id for step in tree.path(leaf)[:-1]}


@given(acts)
def test_tito_folding_the_log_twice_is_folding_it_once(steps: list[tuple[str, int]]) -> None:
    agent = Agent()
    for act, at in steps:
        _act(agent, act, at)
    once = fold(agent.log)
    calls = [event for event in agent.log if isinstance(event, CallRecorded)]
    assert fold([*agent.log, *calls]).nodes == once.nodes


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("go", None),
        ("drop", "dropped_turn"),
        ("edit", "edited_history"),
        ("compact", "compaction"),
        ("again", None),
    ],
)
def test_a_fork_is_named_for_what_the_client_did(act: str, reason: str | None) -> None:
    agent = Agent()
    for _ in range(2):
        agent.say()
        agent.call()
    _act(agent, act, 1)
    if act != "go":
        agent.say()
        agent.call()
    last = agent.log[-1]
    assert isinstance(last, CallRecorded)
    assert last.fork_reason == reason


def test_an_equal_request_is_a_repeat_and_other_tools_are_named() -> None:
    agent = Agent()
    agent.say()
    agent.call()
    agent.history.pop()
    assert agent.plan().fork_reason == "repeat"
    changed = agent.matcher.plan(agent.history, [], attempt=1, encoder=agent.encoder)
    assert changed.fork_reason == "tools_changed"
    later = agent.matcher.plan(
        [Message(role="user", content="other")], TOOLS, attempt=2, encoder=agent.encoder
    )
    assert later.fork_reason == "new_attempt"


@given(st.text("ab", min_size=1), st.text("ab", min_size=1), st.booleans())
def test_roots_differ_by_system_text_and_tools_alone(one: str, other: str, tools: bool) -> None:
    calls, encoder = MatchedCalls(), ToyEncoder()
    heads = [(one, TOOLS), (one, TOOLS if tools else []), (other, TOOLS)]
    for place, (system, offered) in enumerate(heads):
        messages = [
            Message(role="system", content=system),
            Message(role="user", content=f"task {place}"),
        ]
        plan = calls.matcher.plan(messages, offered, attempt=1, encoder=encoder)
        calls.record(plan, (7,), None)
    expected = {(system, bool(offered)) for system, offered in heads}
    assert len(fold(calls.log).children(None)) == len(expected)


def test_a_carried_turn_keeps_its_sampled_tokens() -> None:
    agent = Agent()
    for _ in range(3):
        agent.say()
        agent.call()
    _act(agent, "compact", 1)
    agent.say()
    agent.call()
    tree = fold(agent.log)
    carried = [
        node for node in tree.nodes.values() if node.role == "assistant" and not node.sampled
    ]
    sampled = [node.token_ids for node in tree.sampled()]
    assert [node.token_ids for node in carried] == [GENERATION + tokens for tokens in sampled[1:3]]
    assert "answer of" not in "".join(agent.encoder.encoded)


def test_what_does_not_fit_the_tree_is_an_error() -> None:
    tree = Tree()
    with pytest.raises(TreeError):
        tree.add_segment(Segment(node="a", parent="b", role="user", token_ids=(1,)))
    with pytest.raises(TreeError):
        tree.evolve(CallUndelivered(call="c", execution="e", reason="r"))
    tree.evolve(CallsSealed(execution="e", num_calls=0, last_seq=0))
    assert tree.sealed


def test_ids_depend_on_parent_tokens_and_call() -> None:
    ids = {
        node_id(None, (1, 2)),
        node_id("p", (1, 2)),
        node_id("p", (1, 3)),
        sampled_node_id("p", "c0", (1, 2)),
        sampled_node_id("p", "c1", (1, 2)),
    }
    assert len(ids) == 5
    assert node_id("p", [1, 2]) == node_id("p", array("i", [1, 2]))
