"""How `gyre tree` shows trees, large ones too, and what it says when it cannot."""

from __future__ import annotations

import random
import re

import pytest

from gyre.cli import app
from gyre.contracts.events.calls import CallRecorded
from gyre.core.causes import causes
from gyre.core.tree import fold
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.command_line import one_line
from gyre.testkit.trajectory_world import Caller
from gyre.testkit.tree_case import TREE_CASE
from gyre.testkit.tree_runs import EXECUTIONS, Terminal, run_of, trained_run


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    return trained_run(app, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def papers_case(terminal: Terminal) -> str:
    events = calls_of_contexts(EXECUTIONS[0], TREE_CASE)
    return run_of(terminal.home, events, row_tokens=100_000, tokens_per_micro_step=100_000)


def test_the_papers_case_fits_a_screen_and_folds_no_node_away(
    terminal: Terminal, papers_case: str
) -> None:
    text = terminal.text(EXECUTIONS[0], papers_case)
    lines = text.splitlines()
    assert len(lines) < 50
    assert max(map(len, lines)) < 200
    assert "636 calls (636 committed); sealed" in text
    assert "1,347 message nodes, 10 paths of 53 to 293 of them; 1,716 laid flat" in text
    drawn = text.partition("\n\n")[2].partition("\n\n")[2]
    assert sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) nodes?,", drawn)) == 1983
    full = terminal.text(EXECUTIONS[0], papers_case, "--full")
    assert len(full.splitlines()) > 1983


def test_many_leaves_of_one_kind_are_one_line(terminal: Terminal) -> None:
    calls = Caller(EXECUTIONS[0], random.Random(0))
    first = calls.call(None)
    for _ in range(9):
        calls.call(first, role="other")
    calls.call(calls.call(first))
    run = run_of(terminal.home, calls.events)
    text = terminal.text(EXECUTIONS[0], run)
    assert text.count("other role") == 2  # in the totals, and once below
    assert "9 branches of other: 9 calls · 27 nodes, 207 tokens · 72 sampled · other role" in text
    assert terminal.text(EXECUTIONS[0], run, "--full").count("other role") == 10


# The part of the DOT language that is printed.
TEXT = r'"(?:[^"\\]|\\.)*"'
STATEMENTS = tuple(
    map(
        re.compile,
        (
            r"  rankdir=LR;",
            rf"  node \[shape=box, style=filled, fontname={TEXT}\];",
            rf"  (?P<box>c\d+) \[label={TEXT}, fillcolor=\w+\];",
            r"  (?P<above>c\d+) -> (?P<below>c\d+);",
            rf"  c\d+ -> c\d+ \[style=dashed, constraint=false, label={TEXT}\];",
        ),
    )
)


@pytest.mark.parametrize("options", [(), ("--full",)])
def test_dot_is_a_graph_whose_boxes_are_a_forest(
    terminal: Terminal, papers_case: str, options: tuple[str, ...]
) -> None:
    first, *lines, last = terminal.text(EXECUTIONS[0], papers_case, "--dot", *options).splitlines()
    assert (first, last) == (f'digraph "{EXECUTIONS[0]}" {{', "}")
    boxes, below, causes_drawn = set[str](), list[str](), 0
    for line in lines:
        [found] = [match for one in STATEMENTS if (match := one.fullmatch(line))]
        groups = found.groupdict()
        if "box" in groups:
            boxes.add(groups["box"])
        elif "above" in groups:
            assert {groups["above"], groups["below"]} <= boxes
            below.append(groups["below"])
        causes_drawn += "style=dashed" in line
    assert len(below) == len(set(below))
    tree = fold(calls_of_contexts(EXECUTIONS[0], TREE_CASE))
    assert len(boxes) - len(below) == len(tree.children(None))
    assert causes_drawn == len(causes(tree))
    if options:
        assert len(boxes) == len(tree.nodes)


def test_a_name_cannot_break_out_of_the_graph(terminal: Terminal) -> None:
    calls = Caller(EXECUTIONS[0], random.Random(0))
    calls.call(None, role="sub-agent")
    [event] = calls.events
    assert isinstance(event, CallRecorded)
    odd = event.model_copy(update={"agent": '"];\n evil -> c0 [label="\\'})
    dot = terminal.text(EXECUTIONS[0], run_of(terminal.home, [odd]), "--dot")
    assert all(any(one.fullmatch(line) for one in STATEMENTS) for line in dot.splitlines()[1:-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job-g0009-e0", "--file", "run"), "job 'job' has no execution 'job-g0009-e0'"),
        (("two words", "--file", "run"), "execution 'two words': id 'two words': use 1 to 80"),
        (("e0",), "execution 'e0' does not name its job: give it with --job"),
        (("job-g0000-e0", "--job", "other", "--file", "run"), "holds job 'job', not 'other'"),
        (("job-g0000-e0", "--file", "none"), "none: cannot be read: No such file or directory"),
        (("job-g0000-e0", "--dot", "--json", "--file", "run"), "--text, --dot, --json: give one"),
        (("nobody-g0000-e0",), "no stack runs in"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    terminal: Terminal, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(terminal.gyre("tree", *arguments))


def test_an_imported_run_is_found_by_the_executions_name(terminal: Terminal) -> None:
    assert terminal.gyre("import", "run").returncode == 0
    assert terminal.gyre("tree", EXECUTIONS[0]).stdout == terminal.text(EXECUTIONS[0])
