"""`gyre tree` on files: what it says is what the trajectory service trains, token for token."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from gyre.cli import app
from gyre.contracts.events.calls import CallRecorded
from gyre.core.causes import causes
from gyre.core.tree import fold
from gyre.testkit.trajectory_world import Caller, calls_of
from gyre.testkit.tree_runs import BATCH, EXECUTIONS, JOB, Terminal, run_calls, run_of, trained_run


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    return trained_run(app, tmp_path_factory.mktemp("tree"))


def test_what_is_shown_as_admitted_is_what_a_trainer_was_given(terminal: Terminal) -> None:
    choices = Counter[int]()
    for execution in EXECUTIONS:
        tree, shown = fold(run_calls(execution)), terminal.tree(execution)
        carried = [node for node in shown["nodes"] if node["verdict"] == "trained"]
        tokens = sorted(t for node in carried for t in tree.nodes[node["id"]].token_ids)
        assert tokens == terminal.trained.get(execution, [])
        paths = shown["admission"]["paths"]
        of_path = Counter[int]()
        for node in carried:
            of_path[node["path"]] += node["num_tokens"]
        assert of_path == {path["number"]: path["num_targets"] for path in paths}
        assert shown["totals"]["sampled_tokens"].get("trained", 0) == len(tokens)
        choices[len(paths) + len(shown["admission"]["left_out"])] += 1
    assert choices[4] == 3  # it mattered which was drawn


def test_json_has_every_node_of_the_tree(terminal: Terminal) -> None:
    for execution in EXECUTIONS:
        tree, shown = fold(run_calls(execution)), terminal.tree(execution)
        assert [node["id"] for node in shown["nodes"]] == list(tree.nodes)
        for node in shown["nodes"]:
            there = tree.nodes[node["id"]]
            assert (node["parent"], node["role"]) == (there.parent, there.role)
            assert node["num_tokens"] == len(there.token_ids)
            if there.sampled is None:
                assert node["verdict"] == "context"
                continue
            assert (node["call"], node["status"]) == (there.sampled.call, there.sampled.status)
        found = {n["id"]: n["cause"]["node"] for n in shown["nodes"] if n.get("cause")}
        assert found == {node: cause.node for node, cause in causes(tree).items()}
        assert shown["sealed"]
        assert shown["batch"] == BATCH


def test_an_excluded_execution_says_so_and_trains_nothing(terminal: Terminal) -> None:
    text = terminal.text(EXECUTIONS[3])
    assert "admitted: nothing, it is excluded: broken scorer" in text
    assert "not trained" in text
    assert "trained by path" not in text
    assert EXECUTIONS[3] not in terminal.trained


def test_text_says_what_is_trained_by_which_path_and_why_the_rest_is_not(
    terminal: Terminal,
) -> None:
    verdicts = Counter[str]()
    for execution in EXECUTIONS:
        text, shown = terminal.text(execution), terminal.tree(execution)
        assert text.startswith(
            f"execution {execution} of job {JOB}, group {execution[:-3]}, task t"
        )
        for path in shown["admission"]["paths"]:
            assert f"path {path['number']}: {path['request_role']}" in text
            assert f"trained by path {path['number']}" in text
        for name in shown["totals"]["sampled_tokens"]:
            verdicts[name] += 1
            if name != "trained":
                assert name.replace("_", " ") in text.partition("\n\n")[2]
    assert {"trained", "other_role", "aborted", "undelivered", "not_trained"} <= set(verdicts)


def test_an_unsealed_execution_is_shown_as_it_is_so_far(terminal: Terminal) -> None:
    run = run_of(terminal.home, calls_of(EXECUTIONS[0], 1)[:-1])
    text = terminal.text(EXECUTIONS[0], run)
    assert "not sealed: more may come, this is the tree so far" in text
    assert "not scored yet" in text
    assert "of attempt 1, if it is scored as it is now" in text
    assert terminal.tree(EXECUTIONS[0], run)["sealed"] is False


def test_an_execution_without_a_call_is_shown(terminal: Terminal) -> None:
    text = terminal.text(EXECUTIONS[0], run_of(terminal.home, []))
    assert "no call; not sealed" in text
    assert "admitted: nothing of attempt 1" in text


def test_a_path_that_is_too_long_and_one_that_is_not_drawn_are_named(terminal: Terminal) -> None:
    calls = Caller(EXECUTIONS[0], random.Random(0))
    first = calls.call(None)  # 12 + 3 + 8 tokens
    calls.call(first, num_input=5)
    calls.call(first, num_input=9, num_output=2)
    calls.call(first, num_input=200)
    run = run_of(terminal.home, calls.events, row_tokens=60, max_trajectories=1)
    shown = terminal.tree(EXECUTIONS[0], run)
    reasons = {leaf["reason"]: leaf["num_unmasked"] for leaf in shown["admission"]["left_out"]}
    [path] = shown["admission"]["paths"]
    assert path["num_targets"] + reasons["not_drawn"] == 8 + 8 + 2
    assert reasons["too_long"] == 8
    text = terminal.text(EXECUTIONS[0], run)
    assert "  too long: main, 234 tokens, 8 targets that no path carries" in text
    assert "  not drawn: main, " in text


def test_targets_of_an_earlier_path_are_masked_on_a_later_one(terminal: Terminal) -> None:
    calls = Caller(EXECUTIONS[0], random.Random(0))
    first = calls.call(None)
    calls.call(first, num_input=5)
    calls.call(first, num_input=9)
    shown = terminal.tree(EXECUTIONS[0], run_of(terminal.home, calls.events))
    one, two = shown["admission"]["paths"]
    assert (one["num_targets"], one["num_masked"]) == (16, 0)
    assert (two["num_targets"], two["num_masked"]) == (8, 8)


def test_only_the_scored_attempt_is_admitted(terminal: Terminal) -> None:
    run = run_of(terminal.home, calls_of(EXECUTIONS[0], 3, attempt=2), scored=2)
    text, shown = terminal.text(EXECUTIONS[0], run), terminal.tree(EXECUTIONS[0], run)
    assert "attempt 2 scored 0.25" in text
    assert {n["verdict"] for n in shown["nodes"] if n.get("attempt") == 1} == {"other_attempt"}
    assert "trained" in {n["verdict"] for n in shown["nodes"] if n.get("attempt") == 2}


def test_damaged_records_are_named_and_what_came_before_is_shown(terminal: Terminal) -> None:
    caller = Caller(EXECUTIONS[0], random.Random(0))
    caller.call(caller.call(caller.call(None)))
    calls = caller.events
    run = run_of(terminal.home, [calls[0], calls[2]])
    text, shown = terminal.text(EXECUTIONS[0], run), terminal.tree(EXECUTIONS[0], run)
    assert re.search(r"^damaged: record \d+, call ", text, re.MULTILINE)
    assert "admitted: nothing, its records are damaged" in text
    assert shown["damaged"]
    first = calls[0]
    assert isinstance(first, CallRecorded)
    assert [node["id"] for node in shown["nodes"]][-1] == first.node
