"""Oversampling: N' > N are started, N kept, the others counted terminated and never trained."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.executions import Started, Terminated, TerminationReason
from gyre.contracts.events.groups import GroupClaimed, GroupReady
from gyre.contracts.events.scheduling import (
    Dispatched,
    GroupPlan,
    JobSubmitted,
    StartOrdered,
    SurplusCancelled,
)
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.contracts.events.steps import StepCompleted
from gyre.core.execution import ended_by_itself
from gyre.core.groups import JobGroups, evolve, next_ready
from gyre.core.groups.keep import drawn
from gyre.core.scheduling import JobState
from gyre.core.selection import Selection
from gyre.testkit.facts import terminated
from gyre.testkit.scheduling_strategies import live
from gyre.testkit.trajectory_world import small_spec

NUM_KEPT = 3
NAMES = tuple(f"g-e{place}" for place in range(5))
OVERSAMPLED: dict[str, Any] = {
    "cells": 3,
    "capacity": 5,
    "groups_per_step": 4,
    "executions_per_group": 3,
    "executions_started": 5,
    "phi": 0.5,
    "mu": 2,
    "num_steps": 4,
}


class OneGroup:
    """The trajectory buffer's view of one group of NAMES, paid what it is owed."""

    def __init__(self, keep: str, seed: int = 0) -> None:
        spec = small_spec(
            executions_per_group=NUM_KEPT, executions_started=len(NAMES), keep=keep
        ).model_copy(update={"seed": seed})
        self.state = JobGroups(job="j")
        self._sequence = count(1)
        self.say(JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()))
        plan = GroupPlan(group="g", task="t", executions=NAMES)
        self.say(
            Dispatched(based_on=0, now=0.0, kind="training", groups=(plan,), version=0, lineage=1)
        )

    def say(self, body: Body) -> None:
        evolve(self.state, next(self._sequence), body)
        while (ready := next_ready(self.state)) is not None:
            assert self.ready is None
            evolve(self.state, next(self._sequence), ready)

    @property
    def ready(self) -> GroupReady | None:
        return self.state.groups["g"].ready if self.state.groups else None

    def end(self, execution: str, reason: TerminationReason, reward: float) -> None:
        """It terminates, is sealed and scored, as the evaluator would."""
        self.say(terminated(execution, reason))
        self.say(CallsSealed(execution=execution, num_calls=0, last_seq=0))
        if reason == "infrastructure":
            self.say(PlaceholderScored(execution=execution, reason="r"))
        elif not ended_by_itself(reason):
            self.say(ExecutionExcluded(execution=execution, reason=reason))
        else:
            self.say(
                Evaluated(
                    execution=execution,
                    attempt=1,
                    evaluation=f"{execution}-v",
                    artifact="0" * 64,
                    branch="main",
                    reward=reward,
                )
            )


def kept(ready: GroupReady) -> list[str]:
    return [one.execution for one in ready.outcomes if one.disposition != "surplus"]


orders = st.permutations(NAMES)
reasons = st.lists(
    st.sampled_from(["completed", "failed", "timeout", "infrastructure"]), min_size=5, max_size=5
)


@given(order=orders, how=reasons)
def test_the_first_n_that_end_by_themselves_are_kept_and_make_the_group_ready(
    order: list[str], how: list[TerminationReason]
) -> None:
    """However many break: with fewer than N the group takes what there is."""
    group = OneGroup("first_finished")
    ends = list(zip(order, how, strict=True))
    done = [name for name, reason in ends if ended_by_itself(reason)]
    broken = [name for name, reason in ends if not ended_by_itself(reason)]
    wanted = (done + broken)[:NUM_KEPT]
    for place, (name, reason) in enumerate(ends):
        known = len([n for n, r in ends[:place] if ended_by_itself(r)]) >= NUM_KEPT
        assert (group.ready is not None) == known
        group.end(name, reason, place / 5)
    assert group.ready is not None
    assert sorted(kept(group.ready)) == sorted(wanted)


@given(order=orders, rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=5))
def test_surplus_is_in_no_baseline_and_has_no_weight(
    order: list[str], rewards: list[float]
) -> None:
    group = OneGroup("first_finished")
    for name, reward in zip(order, rewards, strict=True):
        group.end(name, "completed", reward)
    assert group.ready is not None
    others = [one for one in group.ready.outcomes if one.execution not in order[:NUM_KEPT]]
    assert all(
        (one.disposition, one.reward, one.advantage) == ("surplus", None, 0.0) for one in others
    )
    assert abs(sum(one.advantage for one in group.ready.outcomes)) < 1e-9
    assert group.ready.zero_weight == (len(set(rewards[:NUM_KEPT])) == 1)


@given(order=orders)
def test_nobody_waits_for_the_seal_or_the_score_of_what_is_surplus(order: list[str]) -> None:
    group = OneGroup("first_finished")
    for name in order[:NUM_KEPT]:
        group.end(name, "completed", 1.0)
    assert group.ready is not None
    group.say(
        SurplusCancelled(based_on=0, now=0.0, group="g", queued=(order[3],), running=(order[4],))
    )
    assert not group.state.trains(order[4])
    group.end(order[4], "surplus", 0.0)
    assert sorted(kept(group.ready)) == sorted(order[:NUM_KEPT])


@given(first=orders, second=orders, seed=st.integers(0, 99), rewards=st.booleans())
def test_drawn_ones_depend_on_job_and_group_alone_and_all_are_scored_first(
    first: list[str], second: list[str], seed: int, rewards: bool
) -> None:
    chosen = []
    for order in (first, second):
        group = OneGroup("drawn", seed)
        for place, name in enumerate(order):
            assert group.ready is None
            group.end(name, "completed", float(rewards and place % 2))
        assert group.ready is not None
        chosen.append(kept(group.ready))
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == NUM_KEPT


def test_drawing_is_even() -> None:
    hits = Counter(
        name
        for number in range(2000)
        for name in drawn(NAMES, NUM_KEPT, seed=1, group=f"g{number}", scored=lambda _: True)
    )
    assert all(abs(hits[name] / 2000 - 3 / 5) < 0.05 for name in NAMES)


def test_an_execution_without_a_score_is_drawn_only_when_the_others_do_not_suffice() -> None:
    for number in range(50):
        names = drawn(
            NAMES, NUM_KEPT, seed=1, group=f"g{number}", scored=lambda name: name > "g-e1"
        )
        assert sorted(names) == ["g-e2", "g-e3", "g-e4"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), started=st.integers(4, 6))
def test_surplus_is_cancelled_when_n_are_done_and_counts_as_terminated(
    seed: int, started: int
) -> None:
    done: Counter[str] = Counter()
    cancelled: dict[str, SurplusCancelled] = {}
    never: set[str] = set()

    def watch(state: JobState, body: Body, now: float) -> None:
        match body:
            case Terminated() if ended_by_itself(body.reason):
                done[state.executions[body.execution].group] += 1
            case SurplusCancelled():
                assert body.group not in cancelled
                assert body.queued or body.running
                assert done[body.group] >= NUM_KEPT
                cancelled[body.group] = body
                never.update(body.queued)
            case StartOrdered():
                assert not never & {order.execution for order in body.orders}
            case Started():
                assert body.execution not in never
            case _:
                pass

    world = live({**OVERSAMPLED, "executions_started": started}, seed, watch)
    training = world.state.training
    assert training.dispatched == training.started == training.terminated == 16 * started
    assert len(world.decisions(StepCompleted)) == 4


def test_the_report_shows_that_first_finished_keeps_the_shorter_ones() -> None:
    """And counts a cancelled one with what it had taken when it was ended."""
    means = {}
    for keep in ("first_finished", "drawn"):
        group, selection = OneGroup(keep), Selection()
        plan = GroupPlan(group="g", task="t", executions=NAMES)
        selection.fold(
            Dispatched(based_on=0, now=0, kind="training", groups=(plan,), version=0, lineage=1)
        )
        for place, name in enumerate(NAMES):
            running = keep == "drawn" or place < NUM_KEPT
            reason: TerminationReason = "completed" if running else "surplus"
            group.end(name, reason, place / 5)
            took = float(place + 1) if running else 3.5
            selection.fold(terminated(name, reason, duration_s=took))
        assert group.ready is not None
        selection.fold(group.ready)
        assert selection.summary()["num_surplus"] == 0
        selection.fold(GroupClaimed(group="g", batch="b"))
        means[keep] = selection.summary()
    first = means["first_finished"]
    assert (first["num_surplus"], first["kept_duration_s"]) == (2, 2.0)
    assert (first["surplus_duration_s"], first["started_duration_s"]) == (3.5, 2.6)
    assert means["drawn"]["started_duration_s"] == 3.0


def test_random_orders_never_leave_a_group_without_its_end() -> None:
    """Cancelled in the queue, ended, broken or done, in any order."""
    for seed in range(300):
        rng = random.Random(seed)
        group = OneGroup(rng.choice(["first_finished", "drawn"]))
        for name in rng.sample(NAMES, len(NAMES)):
            kind = rng.choice(["queued", "completed", "infrastructure", "cancelled", "timeout"])
            if kind == "queued":
                group.say(
                    SurplusCancelled(based_on=0, now=0, group="g", queued=(name,), running=())
                )
            else:
                group.end(name, kind, rng.random())  # type: ignore[arg-type]
        assert group.ready is not None
        assert len(kept(group.ready)) == NUM_KEPT
