"""Why a request leaves an earlier one's path, one test for each reason."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gyre.contracts.events.calls import RequestRole
from gyre.core.matching import Plan, SentTurn
from gyre.core.messages import Message, Role
from gyre.core.tree import TreeError
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, ToyEncoder

TOOLS: list[Mapping[str, Any]] = [{"type": "function", "function": {"name": "run"}}]


def said(*texts: str) -> list[Message]:
    """Messages of which those after "a:" are the assistant's and after "s:" the system's."""
    roles: dict[str, Role] = {"a": "assistant", "s": "system", "u": "user"}
    return [Message(role=roles[text[0]], content=text[2:]) for text in texts]


@dataclass
class Calls(MatchedCalls):
    """Requests of one execution and their answers."""

    encoder: ToyEncoder = field(default_factory=ToyEncoder)
    attempt: int = 1

    def plan(
        self,
        *texts: str,
        role: RequestRole = "main",
        agent: str | None = None,
        tools: Sequence[Mapping[str, Any]] = TOOLS,
    ) -> Plan:
        return self.matcher.plan(
            said(*texts),
            tools,
            attempt=self.attempt,
            encoder=self.encoder,
            request_role=role,
            agent=agent,
        )

    def ask(
        self,
        *texts: str,
        answer: str = "",
        role: RequestRole = "main",
        agent: str | None = None,
        tools: Sequence[Mapping[str, Any]] = TOOLS,
        outcome: str = "committed",
    ) -> str | None:
        """The fork's reason of a call that ends in `outcome`."""
        plan = self.plan(*texts, role=role, agent=agent, tools=tools)
        turn = SentTurn(content=answer) if outcome == "committed" else None
        output = (300 + len(self.log), CLOSE)
        self.record(
            plan,
            output,
            turn,
            attempt=self.attempt,
            request_role=role,
            agent=agent,
            outcome=outcome,
        )
        return plan.fork_reason


def test_a_request_that_goes_on_has_no_reason() -> None:
    calls = Calls()
    assert calls.ask("s:x", "u:1", answer="A") is None
    assert calls.ask("s:x", "u:1", "a:A", "u:2", answer="B") is None
    assert calls.ask("s:x", "u:1", "a:A", "u:2", "a:B", "u:3") is None


def test_other_messages_or_tools_at_the_beginning() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    assert calls.ask("s:y", "u:1") == "new_root"
    assert calls.ask("s:x", "u:1", tools=[]) == "tools_changed"
    assert calls.ask("u:1", tools=[*TOOLS, *TOOLS]) == "tools_changed"


def test_a_turn_that_is_left_out_and_one_that_was_never_sent() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    assert calls.ask("s:x", "u:1", "u:2") == "dropped_turn"
    assert calls.ask("s:x", "u:1", "a:other", "u:2") == "edited_history"
    assert calls.ask("s:x", "u:1", "a:A", "u:2", answer="B") is None
    assert calls.ask("s:x", "u:1", "a:A", "u:3") == "branch"


def test_an_edited_input_is_an_edit_although_all_turns_are_kept() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    calls.ask("s:x", "u:1", "a:A", "u:2", answer="B")
    assert calls.ask("s:x", "u:1", "a:A", "u:two", "a:B", "u:3") == "edited_history"
    assert calls.ask("s:y", "u:1", "a:A", "u:2", "a:B", "u:3") == "edited_history"


def test_an_equal_request_is_a_repeat_or_a_retry() -> None:
    calls = Calls()
    calls.ask("u:1", answer="A")
    assert calls.ask("u:1", answer="B") == "repeat"
    calls.lose()
    assert calls.ask("u:1", outcome="aborted") == "retry"
    assert calls.ask("u:1") == "retry"


def test_going_on_without_a_turn_that_did_not_arrive_drops_nothing() -> None:
    calls = Calls()
    calls.ask("u:1", answer="A")
    calls.lose()
    assert calls.ask("u:1", "u:2") == "retry"


def test_another_attempt_forks_as_such() -> None:
    calls = Calls()
    calls.ask("u:1")
    calls.attempt = 2
    assert calls.ask("u:one") == "new_attempt"


def test_requests_side_by_side_before_any_is_answered_are_of_one_attempt() -> None:
    calls = Calls()
    calls.plan("s:x", "u:1")
    assert calls.plan("s:y", "u:1", role="sub-agent").fork_reason == "delegation"


@pytest.mark.parametrize("restart", [False, True])
def test_a_sub_agents_beginning_is_a_delegation(restart: bool) -> None:
    calls = Calls()
    calls.ask("s:x", "u:1")
    if restart:
        calls.restart()
    assert calls.ask("s:y", "u:1", role="sub-agent", tools=[], answer="A") == "delegation"
    assert calls.ask("s:y", "u:1", role="sub-agent", tools=[], answer="A") == "delegation"
    assert calls.ask("s:y", "u:1", "a:A", "u:2", role="sub-agent", tools=[]) is None
    assert calls.ask("s:y", "u:1", "a:A", "u:2", role="sub-agent", tools=[]) == "repeat"


@pytest.mark.parametrize("names", [(None, None), ("a", "b")], ids=["unnamed", "named"])
def test_sub_agents_that_begin_alike_are_delegations_each(
    names: tuple[str | None, str | None],
) -> None:
    """Codex's have the same texts before their tasks."""
    calls = Calls()
    calls.ask("s:x", "u:here", "u:1")
    first, second = names
    alike = ("s:y", "u:here")
    assert calls.ask(*alike, "u:2", role="sub-agent", agent=first, answer="A") == "delegation"
    assert calls.ask(*alike, "u:3", role="sub-agent", agent=second, answer="B") == "delegation"
    on = (*alike, "u:2", "a:A")
    assert calls.ask(*on, "u:4", role="sub-agent", agent=first, answer="C") is None
    assert calls.ask(*alike, "u:2", "u:5", role="sub-agent", agent=first) == "dropped_turn"
    edited = (*on, "u:4", "a:other", "u:6")
    assert calls.ask(*edited, role="sub-agent", agent=first) == "edited_history"


def test_a_new_sub_agent_may_begin_with_its_parents_history() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    calls.ask("s:x", "u:1", "a:A", "u:2", answer="B")
    forked = ("s:x", "u:1", "a:A", "u:look")
    assert calls.ask(*forked, role="sub-agent", agent="a", answer="C") == "delegation"
    assert calls.ask(*forked, "a:C", "u:on", role="sub-agent", agent="a") is None
    assert calls.ask("s:x", "u:1", "a:A", "u:other", role="sub-agent", agent="a") == "branch"


@pytest.mark.parametrize("restart", [False, True])
def test_a_sub_agent_that_is_known_by_name_delegates_to_nobody_by_beginning_anew(
    restart: bool,
) -> None:
    calls = Calls()
    calls.ask("s:x", "u:1")
    assert calls.ask("s:y", "u:1", role="sub-agent", agent="a", answer="A") == "delegation"
    summary = ("s:y", "u:1", "a:A", "u:sum up")
    assert calls.ask(*summary, role="sub-agent-summary", agent="a") is None
    if restart:
        calls.restart()
    assert calls.ask("s:y", "u:2", role="sub-agent", agent="b") == "delegation"
    assert calls.ask("s:y", "u:in short", role="sub-agent", agent="a") == "compaction"
    assert calls.ask("s:y", "u:other", role="sub-agent", agent="a") == "new_root"


def test_side_requests_and_the_first_of_a_role_explain_themselves() -> None:
    calls = Calls()
    assert calls.ask("s:a title", "u:1", role="other", tools=[]) is None
    assert calls.ask("s:x", "u:1") == "other_role"
    assert calls.ask("s:a title", "u:2", role="other", tools=[]) == "other_role"
    assert calls.ask("s:y", "u:1") == "new_root"


@pytest.mark.parametrize("restart", [False, True])
def test_a_compaction_keeps_the_last_rounds_with_their_tokens(restart: bool) -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    calls.ask("s:x", "u:1", "a:A", "u:2", answer="B")
    if restart:
        calls.restart()
    assert calls.ask("s:x", "u:in short", "a:B", "u:3") == "compaction"
    tree = calls.matcher.tree
    carried = [n for n in tree.nodes.values() if n.role == "assistant" and n.sampled is None]
    assert [node.token_ids[2:] for node in carried] == [array("i", [301, CLOSE])]


@pytest.mark.parametrize("restart", [False, True])
def test_after_a_summary_the_client_may_begin_anew_once(restart: bool) -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    assert calls.ask("u:sum up", tools=[], role="main-summary", answer="S") == "compaction"
    if restart:
        calls.restart()
    assert calls.ask("s:x", "u:1", "a:A", "u:2") is None
    assert calls.ask("s:x", "u:1", "u:S") == "compaction"
    assert calls.ask("s:x", "u:1", "u:T") == "dropped_turn"


def test_a_summary_that_was_not_given_explains_nothing() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    calls.ask("s:x", "u:1", "a:A", "u:sum up", role="main-summary", outcome="aborted")
    assert calls.ask("s:x", "u:1", "u:2") == "dropped_turn"


def test_what_was_refused_leaves_no_trace() -> None:
    calls = Calls()
    calls.ask("s:x", "u:1", answer="A")
    before = dict(calls.matcher.tree.nodes)
    plan = calls.plan("s:x", "u:1", "a:A", "u:too long", "u:by far")
    calls.matcher.undo(plan)
    assert calls.matcher.tree.nodes == before
    assert calls.ask("s:x", "u:1", "a:A", "u:2") is None
    with pytest.raises(TreeError):
        calls.matcher.tree.discard(next(iter(before)))


def test_undo_keeps_what_another_request_has_gone_on_from() -> None:
    calls = Calls()
    first = calls.plan("s:x", "u:1", "u:2")
    second = calls.plan("s:x", "u:1")
    calls.matcher.undo(first)
    assert second.parent in calls.matcher.tree.nodes
    assert first.parent not in calls.matcher.tree.nodes
    assert calls.plan("s:x", "u:1").parent == second.parent


def test_only_the_first_calls_head_is_the_first_head() -> None:
    calls = Calls()

    def is_first(*texts: str, tools: Sequence[Mapping[str, Any]] = TOOLS) -> bool:
        return calls.matcher.opening(said(*texts), tools).is_first

    assert is_first("s:x", "u:1")
    calls.ask("s:x", "u:1")
    assert is_first("s:x", "u:2")
    assert is_first("u:2", tools=[])
    assert not is_first("s:y", "u:1")
    assert not is_first("s:x", "u:1", tools=[])


class StrictEncoder(ToyEncoder):
    """A family whose template retells turns: sampled tokens are below 10 or above 299."""

    def keeps(self, turn: array[int], *, is_sampled: bool) -> bool:
        return turn[0] < 300


def test_a_turn_that_the_template_retells_stands_beside_the_sampled_one() -> None:
    calls = Calls(encoder=StrictEncoder())
    calls.ask("u:1", answer="A")
    assert calls.ask("u:1", "a:A", "u:2", answer="B") == "template"
    tree = calls.matcher.tree
    told = [n for n in tree.nodes.values() if n.role == "assistant" and n.sampled is None]
    [opening] = (node for node in tree.children(told[0].parent) if node.role == "generation")
    assert [turn.sampled is not None for turn in tree.children(opening.id)] == [True]
    assert calls.ask("u:1", "a:A", "u:2", "a:B", "u:3") == "template"
    assert len([text for text in calls.encoder.encoded if text == "A"]) == 1
