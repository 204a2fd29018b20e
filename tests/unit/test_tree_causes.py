"""Who delegated to whom, what a summary covers, and what goes on from it."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from gyre.contracts.events.calls import CallUndelivered
from gyre.core.causes import Cause, CauseKind, causes
from gyre.core.tree import Tree, fold
from gyre.core.tree_nodes import Node, Sampled
from gyre.testkit.branching_calls import Context, calls_of_contexts, moments
from gyre.testkit.execution_population import Profile, contexts_of
from gyre.testkit.trajectory_world import calls_of

HEAD = ("system", "user")


def played(*contexts: Context) -> tuple[Tree, dict[str, tuple[str, str]]]:
    """The tree, and of each call that has a cause the call that is it, with its kind."""
    tree = fold(calls_of_contexts("x", contexts))
    return tree, by_call(tree)


def by_call(tree: Tree) -> dict[str, tuple[str, str]]:
    names = {node: call.removeprefix("x-c0000") for call, node in tree.calls.items()}
    found = causes(tree)
    return {names[node]: (names[cause.node], cause.kind) for node, cause in found.items()}


def sub_agent(agent: str | None, after: tuple[int, int] | None, **changes: Any) -> Context:
    usual: dict[str, Any] = {
        "role": "sub-agent",
        "agent": agent,
        "after": after,
        "opening": HEAD,
        "num_turns": 2,
        "fork_reason": "delegation",
    }
    return Context(**usual | changes)


def test_a_turn_that_goes_on_where_one_ended_has_no_cause() -> None:
    assert played(Context(opening=HEAD, num_turns=4))[1] == {}


def test_a_sub_agent_is_caused_by_its_parents_last_turn() -> None:
    main = Context(opening=HEAD, num_turns=3)
    _, found = played(main, sub_agent("a", (0, 1)))
    assert found == {"2": ("1", "delegation")}


def test_a_nested_sub_agent_is_caused_by_its_own_parent() -> None:
    main = Context(opening=HEAD, num_turns=3)
    nested = sub_agent("b", (1, 0), parent_agent="a")
    _, found = played(main, sub_agent("a", (0, 1)), nested)
    assert found == {"2": ("1", "delegation"), "3": ("2", "delegation")}


def test_a_parents_name_that_no_sub_agent_has_is_the_main_agents() -> None:
    main = Context(opening=HEAD, num_turns=2)
    _, found = played(main, sub_agent("a", (0, 0), parent_agent="the main thread"))
    assert found == {"1": ("0", "delegation")}


def test_agents_without_names_are_told_apart_by_their_paths() -> None:
    main = Context(opening=HEAD, num_turns=3)
    _, found = played(main, sub_agent(None, (0, 0)), sub_agent(None, (0, 1)))
    assert found == {"1": ("0", "delegation"), "4": ("3", "delegation")}


def test_a_summary_covers_its_agents_last_turn_and_the_next_turn_goes_on_from_it() -> None:
    main = Context(opening=HEAD, num_turns=2)
    asks = Context(
        role="main-summary",
        after=(0, 1),
        of=0,
        num_shared=3,
        opening=("user",),
        num_turns=1,
        fork_reason="compaction",
    )
    goes_on = Context(
        after=(1, 0), of=0, num_shared=1, opening=("user",), num_turns=2, fork_reason="compaction"
    )
    _, found = played(main, asks, goes_on)
    assert found == {"2": ("1", "summary"), "3": ("2", "continuation")}


def test_a_summary_on_a_root_of_its_own_still_has_what_it_covers() -> None:
    main = Context(opening=HEAD, num_turns=2)
    asks = Context(
        role="main-summary", after=(0, 1), opening=HEAD, num_turns=1, fork_reason="compaction"
    )
    tree, found = played(main, asks)
    assert len(tree.children(None)) == 2
    assert found == {"2": ("1", "summary")}


def test_what_the_program_asks_for_itself_neither_has_nor_is_a_cause() -> None:
    main = Context(opening=HEAD, num_turns=2)
    title = Context(role="other", after=(0, 0), opening=HEAD, num_turns=1)
    _, found = played(main, title, sub_agent("a", (1, 0)))
    assert found == {"2": ("0", "delegation")}


def test_an_answer_that_did_not_arrive_causes_nothing() -> None:
    main = Context(opening=HEAD, num_turns=2)
    *calls, seal = calls_of_contexts("x", (main, sub_agent("a", (0, 1))))
    lost = CallUndelivered(call="x-c00001", execution="x", reason="client left")
    found = by_call(fold([*calls, lost, seal]))
    assert found == {"2": ("0", "delegation")}


def test_another_attempt_begins_without_causes() -> None:
    main = Context(opening=HEAD, num_turns=1)
    first = calls_of_contexts("x", (main, sub_agent("a", (0, 0))))[:-1]
    again = calls_of_contexts("y", (sub_agent("a", None),))[:-1]
    again = [event.model_copy(update={"attempt": 2}) for event in again]
    tree = fold([*first, *again])
    assert [tree.node(node).sampled.call for node in causes(tree)] == ["x-c00001"]  # type: ignore[union-attr]


def sampled(tree: Tree, name: str, parent: str, token_ids: list[int], **changes: Any) -> Node:
    """A call's node below `parent`, as the fold makes it."""
    usual: dict[str, Any] = {
        "call": name,
        "attempt": 1,
        "request_role": "main",
        "logprobs": array("d", [-1.0] * len(token_ids)),
        "spans": (),
        "temperature": 1.0,
        "status": "committed",
        "order": len(tree.calls),
        "fork_reason": None,
    }
    node = Node(
        id=name,
        parent=parent,
        role="assistant",
        token_ids=array("i", token_ids),
        num_context_tokens=tree.num_path_tokens(parent),
        sampled=Sampled(**usual | changes),
    )
    tree.nodes[name] = node
    tree.calls[name] = name
    return node


def test_what_is_asked_again_has_no_cause_of_an_attempt_before() -> None:
    tree = Tree()
    head = tree.add_input(None, "user", array("i", [1, 2, 3])).id
    sampled(tree, "turn", head, [4])
    demand = tree.add_input("turn", "user", array("i", [5])).id
    sampled(tree, "summary", demand, [6], request_role="main-summary")
    going_on = tree.add_input(head, "user", array("i", [6])).id
    sampled(tree, "goes-on", going_on, [7], fork_reason="compaction")
    sampled(tree, "again", going_on, [8], fork_reason="retry")
    sampled(tree, "new-attempt", going_on, [9], fork_reason="retry", attempt=2)
    summary = Cause(node="summary", kind="continuation")
    found = causes(tree)
    assert (found["goes-on"], found["again"]) == (summary, summary)
    assert "new-attempt" not in found


def test_an_agent_without_a_name_is_no_agent_of_an_attempt_before() -> None:
    """Its first call here hangs below a turn that the attempt before sampled."""
    tree = Tree()
    head = tree.add_input(None, "user", array("i", [1, 2, 3])).id
    sampled(tree, "turn", head, [4])
    given = tree.add_input(None, "user", array("i", [5])).id
    sampled(tree, "sub-turn", given, [6], request_role="sub-agent")
    sampled(tree, "turn-2", head, [4], attempt=2)
    more = tree.add_input("sub-turn", "user", array("i", [7])).id
    sampled(tree, "sub-turn-2", more, [8], request_role="sub-agent", attempt=2)
    assert causes(tree) == {
        "sub-turn": Cause(node="turn", kind="delegation"),
        "sub-turn-2": Cause(node="turn-2", kind="delegation"),
    }


def test_of_a_parent_that_did_not_wait_the_turn_with_the_sub_agents_words_is_the_cause() -> None:
    tree = Tree()
    task = [101, 102, 103, 104, 105, 106]
    head = tree.add_input(None, "user", array("i", [1, 2, 3])).id
    sampled(tree, "delegates", head, [7, *task, 8])
    sampled(tree, "goes-on", head, [9, 10, 11, 12, 13, 14])
    given = tree.add_input(None, "user", array("i", [5, *task])).id
    sampled(tree, "asks", given, [15], request_role="sub-agent", agent="a")
    assert causes(tree) == {"asks": Cause(node="delegates", kind="delegation")}


@pytest.mark.parametrize("seed", range(12))
def test_of_agents_that_wait_every_cause_is_the_turn_that_the_program_acted_on(seed: int) -> None:
    source = random.Random(seed)
    contexts = contexts_of(Profile(branching=1.0, main=120.0, window=(20, 60), sub=40.0), source)
    tree = fold(calls_of_contexts("x", contexts))
    turns = dict(zip(moments(contexts), tree.calls.values(), strict=True))
    kinds: dict[str, CauseKind] = {"delegation": "delegation", "compaction": "continuation"}
    expected = {
        turns[place, 0]: Cause(
            node=turns[context.after],
            kind="summary" if "summary" in context.role else kinds[context.fork_reason or ""],
        )
        for place, context in enumerate(contexts)
        if context.after is not None
    }
    assert len(expected) > 3
    assert causes(tree) == expected


@pytest.mark.parametrize("seed", range(40))
def test_a_cause_is_an_earlier_turn_of_the_same_attempt(seed: int) -> None:
    tree = fold(calls_of("x", seed, attempt=1 + seed % 2))
    for node, cause in causes(tree).items():
        asked, acted_on = tree.node(node).sampled, tree.node(cause.node).sampled
        assert asked is not None
        assert acted_on is not None
        assert acted_on.order < asked.order
        assert acted_on.attempt == asked.attempt
