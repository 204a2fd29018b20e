"""What the projection keeps of a tree takes and refuses the records that the tree does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, CallUndelivered
from gyre.core.records import RecordError, fold_record
from gyre.core.tree import Tree
from gyre.core.tree_nodes import sampled_node_id
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.trajectory_world import calls_of
from gyre.testkit.tree_case import TREE_CASE
from gyre.trajectory.tree_shapes import Row, Shape

E = "e"


def folded(events: list[Body]) -> tuple[Tree, str | None]:
    """The tree, and what is wrong with the first record that does not fit."""
    tree = Tree()
    for sequence, event in enumerate(events, start=1):
        try:
            fold_record(tree, E, sequence, event)
        except RecordError as error:
            return tree, str(error)
    return tree, None


def shaped(events: list[Body]) -> tuple[Shape, list[Row], str | None]:
    shape, rows = Shape(execution=E, job="j"), list[Row]()
    for sequence, event in enumerate(events, start=1):
        try:
            new, undelivered = shape.fold(sequence, event)
        except RecordError as error:
            return shape, rows, str(error)
        rows += new
        for row in rows:
            if row["node_id"] == undelivered:
                row["provenance"] = "undelivered"
    return shape, rows, None


def assert_same(shape: Shape, rows: list[Row], tree: Tree) -> None:
    assert shape.ends == {node.id: node.num_path_tokens for node in tree.nodes.values()}
    assert list(shape.ends) == list(tree.nodes) == [row["node_id"] for row in rows]
    assert (shape.calls, shape.sealed) == (tree.calls, tree.sealed)
    assert [row["ordinal"] for row in rows] == list(range(len(rows)))
    statuses = {row["node_id"]: row["provenance"] for row in rows if row["kind"] == "sampled"}
    assert statuses == {n.id: n.sampled.status for n in tree.sampled() if n.sampled is not None}


@pytest.mark.parametrize("seed", range(12))
def test_a_shape_is_its_tree_without_the_tokens(seed: int) -> None:
    events = calls_of(E, seed, attempt=1 + seed % 2)
    tree, error = folded(events)
    shape, rows, refused = shaped(events)
    assert (error, refused) == (None, None)
    assert_same(shape, rows, tree)


def test_the_papers_case_is_no_plain_tree_and_a_single_agents_is() -> None:
    shape, rows, error = shaped(calls_of_contexts(E, TREE_CASE))
    assert error is None
    assert_same(shape, rows, folded(calls_of_contexts(E, TREE_CASE))[0])
    assert not shape.is_plain
    assert shaped(calls_of(E, 5)[:1])[0].is_plain


def change(index: int, **fields: object) -> Callable[[list[Body]], list[Body]]:
    return lambda events: [
        event.model_copy(update=fields) if place == index else event
        for place, event in enumerate(events)
    ]


def spoilt_key(events: list[Body]) -> list[Body]:
    call = events[0]
    assert isinstance(call, CallRecorded)
    first = call.segments[0].model_copy(update={"known_by": ("no hex",)})
    return [call.model_copy(update={"segments": (first, *call.segments[1:])}), *events[1:]]


REROUTED = CallRerouted(
    call="c", execution=E, source=0, destination=1, tokens_kept=0, reason="transition"
)
SEAL = CallsSealed(execution=E, num_calls=99, last_seq=0)
FAULTS: dict[str, Callable[[list[Body]], list[Body]]] = {
    "missing": lambda events: events[1:],
    "twice": lambda events: [events[0], *events],
    "out of order": lambda events: [events[1], events[0], *events[2:]],
    "behind the seal": lambda events: [*events, REROUTED],
    "of another execution": change(1, execution="f"),
    "sealed with others": lambda events: [*events[:-1], SEAL],
    "unknown call": lambda events: [CallUndelivered(call="?", execution=E, reason="r"), *events],
    "segments out of order": change(1, parent=None),
    "fewer logprobs": change(1, output_logprobs=()),
    "other tokens": change(1, output_ids=(1, 2)),
    "no token": change(0, output_ids=(2**40,)),
    "no key": spoilt_key,
    "no parent": change(0, segments=()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_shape_refuses_what_its_tree_refuses_for_the_same_reason(fault: str, seed: int) -> None:
    events = FAULTS[fault](calls_of(E, seed))
    _, error = folded(events)
    shape, rows, refused = shaped(events)
    assert error is not None
    assert refused == error
    # What came before stands, and nothing of the record that does not fit.
    assert list(shape.ends) == [row["node_id"] for row in rows]
    assert set(shape.calls.values()) == {r["node_id"] for r in rows if r["kind"] == "sampled"}


def test_a_name_that_postgres_cannot_keep_damages_its_execution_alone() -> None:
    [call, *_] = calls_of(E, 0)
    assert isinstance(call, CallRecorded)
    _, rows, refused = shaped([call.model_copy(update={"agent": "a\0b"})])
    assert rows == []
    assert refused is not None
    assert refused.endswith("a name holds a NUL, which Postgres cannot keep")


def test_equal_inputs_below_one_parent_are_one_row() -> None:
    first = calls_of(E, 0)[0]
    assert isinstance(first, CallRecorded)
    again = first.model_copy(update={"call": "again", "outcome": "aborted"})
    node = sampled_node_id(first.segments[-1].node, "again", first.output_ids)
    again = again.model_copy(update={"node": node})
    shape, rows, refused = shaped([first, again])
    assert refused is None
    assert [row["kind"] for row in rows] == [*["input"] * len(first.segments), "sampled", "sampled"]
    assert shape.calls == {first.call: first.node, "again": again.node}
