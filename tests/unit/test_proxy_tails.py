"""Which paths of an execution its next calls go on from, and what a change of route cost them."""

from __future__ import annotations

from typing import Any

from gyre.contracts.events.calls import CallRecorded, Moved, Segment, Span
from gyre.core.routing import Engine
from gyre.core.tree import Tree
from gyre.core.tree_nodes import node_id, token_array
from gyre.proxy.sampling.tails import MAX_TAILS, Tail, Tails

HERE = Engine(cell=0, url="http://a", lineage=1, version=3, epoch=10)
THERE = Engine(cell=1, url="http://b", lineage=1, version=3, epoch=11)
WEIGHTS = (1, 3)


class Execution:
    """Its tree and its tails, as calls are recorded."""

    def __init__(self) -> None:
        self.tree, self.tails, self.now = Tree(), Tails(), 0.0

    def asked(self, parent: str | None, *tokens: int) -> str:
        """The node of a new message below `parent`."""
        return self.tree.add_input(parent, "user", token_array(tokens)).id

    def called(self, after: str | None, *tokens: int, **changes: Any) -> str:
        """A call of two output tokens, which asks `tokens` after the node `after`; its node."""
        self.now += 1.0
        name = f"c{int(self.now):05d}"
        asked = node_id(after, token_array(tokens))
        segment = Segment(node=asked, parent=after, role="user", token_ids=tokens)
        event = CallRecorded.model_validate(
            {
                "call": name,
                "execution": "e",
                "attempt": 1,
                "request_role": "main",
                "parent": after,
                "segments": (segment,),
                "node": f"node-{name}",
                "output_ids": (1, 2),
                "output_logprobs": (-0.5, -0.5),
                "spans": (Span(start=0, end=2, version=3, lineage=1, cell=0),),
                "num_input_tokens": self.tree.num_path_tokens(after) + len(tokens),
                "num_cached_tokens": 0,
                "temperature": 1.0,
                "max_new_tokens": 8,
                "finish_reason": "stop",
                "outcome": "committed",
                "duration_s": 0.1,
            }
            | changes
        )
        tail = self.tails.before(self.tree, after)
        self.tree.evolve(event)
        self.tails.ended(event, HERE, tail, self.now)
        return event.node

    def ends(self) -> list[str]:
        """Nodes of the tails at HERE."""
        return [tail.node for tail in self.tails.cached_at(HERE)]


def test_a_call_that_goes_on_takes_the_place_of_the_one_before_it() -> None:
    execution = Execution()
    first = execution.called(None, 5, 6, 7)
    second = execution.called(first, 8, 9)
    assert execution.ends() == [second]
    [tail] = execution.tails.cached_at(HERE)
    assert tail.num_tokens == 3 + 2 + 2 + 2 - 1
    asked = execution.asked(execution.asked(second, 4), 3)
    assert execution.tails.before(execution.tree, asked) is tail
    assert execution.tails.before(execution.tree, execution.asked(first, 3)) is None
    assert execution.tails.before(execution.tree, execution.asked(None, 3)) is None
    assert execution.tails.before(execution.tree, None) is None


def test_an_engine_that_was_restarted_has_nothing_of_it() -> None:
    execution = Execution()
    execution.called(None, 5)
    restarted = Engine(cell=0, url="http://a", lineage=1, version=3, epoch=99)
    assert execution.tails.cached_at(restarted) == []
    assert execution.tails.cached_at(THERE) == []


def test_nothing_goes_on_from_a_title_or_a_summary() -> None:
    execution = Execution()
    for role in ("other", "main-summary", "sub-agent-summary"):
        execution.called(None, 5, request_role=role)
    assert execution.ends() == []


def test_the_main_agents_path_is_kept_while_its_sub_agents_call() -> None:
    execution = Execution()
    main = execution.called(None, 5)
    subs = [
        execution.called(None, 6, number, request_role="sub-agent") for number in range(MAX_TAILS)
    ]
    assert execution.ends() == [main, *subs[1:]]


def test_a_call_that_came_to_nothing_leaves_its_context_where_it_ran() -> None:
    execution = Execution()
    first = execution.called(None, 5, 6)
    [tail] = execution.tails.cached_at(HERE)
    tail.engine, tail.num_migrated, tail.migration_s = THERE, 3, 0.1
    execution.called(first, 7, outcome="aborted")
    assert execution.ends() == [first]
    assert (tail.home, tail.num_migrated) == (HERE, 0)


def moved_tail(**changes: Any) -> Tail:
    values: dict[str, Any] = {"num_migrated": 80, "migration_s": 0.2, "engine": THERE} | changes
    return Tail(
        node="n", num_tokens=100, weights=WEIGHTS, is_main=True, used=0.0, home=HERE, **values
    )


def test_what_was_cached_before_is_not_prefilled_again() -> None:
    told = moved_tail().moved(1, WEIGHTS, 90)
    assert told == Moved(
        source=0,
        destination=1,
        tokens_at_source=100,
        tokens_migrated=80,
        tokens_prefilled_again=10,
        migration_s=0.2,
    )
    all_there = moved_tail().moved(1, WEIGHTS, 130)
    assert all_there is not None
    assert all_there.tokens_prefilled_again == 0


def test_without_a_change_of_route_or_under_new_weights_nothing_is_said() -> None:
    stayed = moved_tail(num_migrated=0, migration_s=0.0, engine=HERE)
    assert stayed.moved(0, WEIGHTS, 0) is None
    assert moved_tail().moved(1, (1, 4), 0) is None
    returned = moved_tail().moved(0, WEIGHTS, 100)
    assert returned is not None
