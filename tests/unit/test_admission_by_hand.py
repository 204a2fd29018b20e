"""Which tokens are targets, listed by hand, of a main agent that compacts its history.

    S  U  m1  T  m2  T  m3           the main agent's first window
                     D  s1           the demand for a summary below m2's tool result, and its answer
    S  C  m4  T  m5                  the second window, which begins with the summary
    Z  z1                            a title request, which is nobody's turn

Every message is its own tokens: S = 1, U = 2, ...; what is sampled is 10, 11 for m1, 20, 21 for m2
and so on, 90, 91 for s1, 99 for z1.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallUndelivered, RequestRole, Segment
from gyre.core.samples import Choice, choose
from gyre.core.tree import Tree, fold
from gyre.core.tree_nodes import node_id, sampled_node_id, token_array
from gyre.testkit.draws import draw_samples

# Tokens on the longest path of the first window: S U m1 T m2 T m3.
WINDOW_TOKENS = 1 + 1 + 2 + 1 + 2 + 1 + 2


def asked(
    name: str,
    parent: str | None,
    messages: Sequence[tuple[str, int]],
    output: tuple[int, ...],
    role: RequestRole = "main",
) -> CallRecorded:
    """A call below node `parent`, with new messages of one token each."""
    segments: list[Segment] = []
    above = parent
    for said_by, token in messages:
        node = node_id(above, token_array([token]))
        segments.append(Segment(node=node, parent=above, role=said_by, token_ids=(token,)))
        above = node
    return CallRecorded(
        call=name,
        execution="x",
        attempt=1,
        request_role=role,
        parent=parent,
        segments=tuple(segments),
        node=sampled_node_id(above, name, output),
        output_ids=output,
        output_logprobs=(-0.5,) * len(output),
        spans=(),
        num_input_tokens=0,
        num_cached_tokens=0,
        temperature=1.0,
        max_new_tokens=8,
        finish_reason="stop",
        outcome="committed",
        duration_s=0.0,
    )


M1 = asked("m1", None, [("system", 1), ("user", 2)], (10, 11))
M2 = asked("m2", M1.node, [("tool", 3)], (20, 21))
M3 = asked("m3", M2.node, [("tool", 4)], (30, 31))
# Below the tool's result that m3 was asked after.
S1 = asked("s1", M3.segments[-1].node, [("user", 5)], (90, 91), "main-summary")
M4 = asked("m4", M1.segments[0].node, [("user", 6)], (40, 41, 42))
M5 = asked("m5", M4.node, [("tool", 7)], (50,))
Z1 = asked("z1", None, [("system", 8)], (99,), "other")
EVENTS: tuple[Body, ...] = (Z1, M1, M2, M3, S1, M4, M5)


def chosen(tree: Tree, cap: int | None, row_tokens: int = 100, seed: int = 0) -> Choice:
    return choose(
        tree,
        attempt=1,
        row_tokens=row_tokens,
        max_trajectories=cap,
        rng=random.Random(seed),
    )


def drawn(choice: Choice) -> list[tuple[str, list[int]]]:
    """Class and targets of each trajectory, in the order drawn."""
    return [
        (one.leaf.role, [token for place in one.fresh for token in choice.nodes[place].token_ids])
        for one in choice.admitted
    ]


def test_the_whole_tree_without_a_cap() -> None:
    first, second = ("main", [10, 11, 20, 21, 30, 31]), ("main", [40, 41, 42, 50])
    summary = ("main-summary", [90, 91])
    for seed in range(8):
        found = drawn(chosen(fold(EVENTS), None, seed=seed))
        assert found in ([first, second, summary], [second, first, summary])


def test_a_cap_of_two_admits_both_windows_and_leaves_the_summary_out() -> None:
    assert sorted(drawn(chosen(fold(EVENTS), 2))) == [
        ("main", [10, 11, 20, 21, 30, 31]),
        ("main", [40, 41, 42, 50]),
    ]


def test_a_cap_on_length_leaves_the_main_leaf_out_and_admits_the_summary() -> None:
    """m3's last tokens make its path too long. The summary's is as long as it may be, and carries
    what the main agent sampled above it; nothing carries m3."""
    tree = fold([Z1, M1, M2, M3.model_copy(update=longer(M3)), S1, M4, M5])
    choice = chosen(tree, 2, row_tokens=WINDOW_TOKENS + 1)
    assert drawn(choice) == [
        ("main", [40, 41, 42, 50]),
        ("main-summary", [10, 11, 20, 21, 90, 91]),
    ]
    [too_long] = choice.too_long
    assert list(choice.nodes[too_long].token_ids) == [30, 31, 32, 33]

    only_first = fold([Z1, M1, M2, M3.model_copy(update=longer(M3)), S1])
    [summary] = drawn(chosen(only_first, 1, row_tokens=WINDOW_TOKENS + 1))
    assert summary == ("main-summary", [10, 11, 20, 21, 90, 91])


def longer(call: CallRecorded) -> dict[str, object]:
    output = (*call.output_ids, 32, 33)
    return {
        "output_ids": output,
        "output_logprobs": (-0.5,) * len(output),
        "node": sampled_node_id(call.segments[-1].node, call.call, output),
    }


def test_a_main_leaf_that_did_not_arrive_leaves_its_window_to_the_summary() -> None:
    lost = CallUndelivered(call="m3", execution="x", reason="client left")
    assert drawn(chosen(fold([M1, M2, M3, lost, S1]), 1)) == [
        ("main-summary", [10, 11, 20, 21, 90, 91])
    ]


def test_a_summary_that_is_asked_below_the_last_turn_takes_the_place_of_the_main_leaf() -> None:
    below = asked("s2", M3.node, [("tool", 4), ("user", 5)], (90, 91), "main-summary")
    tree = fold([M1, M2, M3, below, M4, M5])
    assert drawn(chosen(tree, 1)) == [("main", [40, 41, 42, 50])]
    assert drawn(chosen(tree, 2)) == [
        ("main", [40, 41, 42, 50]),
        ("main-summary", [10, 11, 20, 21, 30, 31, 90, 91]),
    ]


def test_what_is_packed_are_the_targets_that_were_chosen() -> None:
    tree = fold([Z1, M1, M2, M3.model_copy(update=longer(M3)), S1, M4, M5])
    samples = draw_samples(
        tree,
        attempt=1,
        row_tokens=WINDOW_TOKENS + 1,
        max_trajectories=2,
        rng=random.Random(0),
    )
    packed = [
        block.token_ids[place] for block in samples.blocks for place in block.target_positions
    ]
    assert sorted(packed) == [10, 11, 20, 21, 40, 41, 42, 50, 90, 91]
    assert samples.num_targets == 10
    assert samples.num_paths_too_long == 1


def test_a_role_that_the_profile_does_not_admit_is_context() -> None:
    tree = fold([M1, M2, M3.model_copy(update=longer(M3)), S1])
    choice = choose(
        tree,
        attempt=1,
        row_tokens=100,
        max_trajectories=None,
        rng=random.Random(0),
        class_order=("main",),
    )
    assert drawn(choice) == [("main", [10, 11, 20, 21, 30, 31, 32, 33])]
