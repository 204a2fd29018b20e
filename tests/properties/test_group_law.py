"""Law `group`: each becomes ready, counts as one of B, and never vanishes.

Random interleavings of what the evaluator, the proxy and the scheduler say are folded; what the
fold owes is appended back, as the service does.
"""

from __future__ import annotations

import random
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.cells import BatchJoined
from gyre.contracts.events.groups import GroupClaimed, MicroStepEmitted
from gyre.contracts.events.scheduling import (
    BatchOpened,
    Dispatched,
    EpochFenced,
    ExecutionsCancelled,
    GroupPlan,
    JobSubmitted,
    Restored,
)
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.contracts.events.steps import MicroStepClaimed
from gyre.core.advantage import Outcome, group_advantages
from gyre.core.groups import JobGroups, evolve, next_draw, next_ready, trainees
from gyre.testkit.trajectory_world import small_spec

GROUP_SIZE = 3
outcomes = st.lists(
    st.one_of(
        st.floats(0, 1).map(lambda reward: Outcome(disposition="valid", reward=reward)),
        st.just(Outcome(disposition="excluded", reward=None)),
        st.just(Outcome(disposition="placeholder", reward=0.0)),
    ),
    min_size=1,
    max_size=9,
)


class Log:
    """Folds bodies with rising sequences, and pays what the fold owes after each."""

    def __init__(self) -> None:
        self.state = JobGroups(job="j")
        self.ready: list[str] = []
        self._sequence = count(1)
        self.say(JobSubmitted(spec=small_spec(), train_tasks=("t",), heldout_tasks=()))

    def say(self, body: Body) -> None:
        evolve(self.state, next(self._sequence), body)
        while (ready := next_ready(self.state)) is not None:
            self.ready.append(ready.group)
            evolve(self.state, next(self._sequence), ready)

    def draw(self) -> str | None:
        group, batch = next_draw(self.state), self.state.batch
        if group is None or batch is None:
            return None
        self.say(GroupClaimed(group=group.group, batch=batch.batch))
        return group.group

    def open(self, batch: str, num_groups: int, lineage: int = 1) -> None:
        self.say(
            BatchOpened(
                based_on=0,
                now=0.0,
                batch=batch,
                step=0,
                version=0,
                lineage=lineage,
                num_groups=num_groups,
            )
        )


def dispatched(numbers: range, version: int) -> Dispatched:
    return Dispatched(
        based_on=0,
        now=0.0,
        kind="training",
        version=version,
        lineage=1,
        groups=tuple(
            GroupPlan(
                group=f"g{number}",
                task="t",
                executions=tuple(f"g{number}-e{place}" for place in range(GROUP_SIZE)),
            )
            for number in numbers
        ),
    )


def final(execution: str, kind: str, reward: float) -> Body:
    match kind:
        case "valid":
            return Evaluated(
                execution=execution,
                attempt=1,
                evaluation="v",
                artifact="0" * 64,
                branch="main",
                reward=reward,
            )
        case "excluded":
            return ExecutionExcluded(execution=execution, reason="r")
        case _:
            return PlaceholderScored(execution=execution, reason="r")


def news(rng: random.Random, num_groups: int) -> list[Body]:
    """A seal and a score for every execution, in any order; some are cancelled in the queue."""
    bodies: list[Body] = []
    for number in range(num_groups):
        for place in range(GROUP_SIZE):
            execution = f"g{number}-e{place}"
            kind = rng.choice(["valid", "valid", "valid", "excluded", "placeholder", "cancelled"])
            if kind == "cancelled":
                queued = (execution,)
                bodies.append(
                    ExecutionsCancelled(based_on=0, now=0, queued=queued, running=(), reason="r")
                )
                continue
            bodies.append(final(execution, kind, rng.choice([0.0, 0.5, 1.0])))
            bodies.append(CallsSealed(execution=execution, num_calls=0, last_seq=0))
    rng.shuffle(bodies)
    return bodies


@given(st.integers(1, 6), st.integers())
def test_every_group_becomes_ready_exactly_once(num_groups: int, seed: int) -> None:
    log = Log()
    log.say(dispatched(range(num_groups), version=0))
    for body in news(random.Random(seed), num_groups):
        log.say(body)
    assert sorted(log.ready) == [f"g{number}" for number in range(num_groups)]


@given(st.integers(1, 6), st.integers())
def test_a_group_is_ready_only_when_all_its_executions_are_final_and_sealed(
    num_groups: int, seed: int
) -> None:
    log = Log()
    log.say(dispatched(range(num_groups), version=0))
    for body in news(random.Random(seed), num_groups):
        log.say(body)
        for group in log.state.groups.values():
            assert (group.ready is not None) == group.complete


@given(st.integers(1, 6), st.integers())
def test_seals_that_outrun_the_dispatch_count(num_groups: int, seed: int) -> None:
    log = Log()
    bodies = news(random.Random(seed), num_groups)
    early = [body for body in bodies if isinstance(body, CallsSealed)]
    for body in early:
        log.say(body)
    log.say(dispatched(range(num_groups), version=0))
    for body in bodies:
        if body not in early:
            log.say(body)
    assert len(log.ready) == num_groups
    assert not log.state.sealed_early


@given(st.integers(2, 8), st.integers(), st.integers(1, 4))
def test_each_ready_group_counts_as_one_of_b_zero_weight_included(
    num_groups: int, seed: int, wanted: int
) -> None:
    log = Log()
    log.say(dispatched(range(num_groups), version=0))
    for body in news(random.Random(seed), num_groups):
        log.say(body)
    log.open("b", wanted)
    drawn = [group for _ in range(num_groups + 1) if (group := log.draw()) is not None]
    assert drawn == [f"g{number}" for number in range(min(wanted, num_groups))]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers())
def test_groups_are_drawn_oldest_version_first(versions: list[int], seed: int) -> None:
    log = Log()
    for number, version in enumerate(versions):
        log.say(dispatched(range(number, number + 1), version=version))
    for body in news(random.Random(seed), len(versions)):
        log.say(body)
    log.open("b", len(versions))
    drawn = [log.draw() for _ in versions]
    assert drawn == [f"g{n}" for n in sorted(range(len(versions)), key=lambda n: versions[n])]


@given(st.integers(3, 8), st.integers(), st.data())
def test_after_a_restore_every_group_of_the_open_batch_is_drawable_again(
    num_groups: int, seed: int, data: st.DataObject
) -> None:
    log = Log()
    log.say(dispatched(range(num_groups), version=0))
    for body in news(random.Random(seed), num_groups):
        log.say(body)
    log.open("l1-s0000", num_groups)
    drawn = [log.draw() for _ in range(data.draw(st.integers(0, num_groups)))]
    known = tuple(filter(None, data.draw(st.permutations(drawn))))[: len(drawn) // 2]
    log.say(
        Restored(based_on=0, now=0.0, lineage=2, version=0, checkpoint="c", returned_groups=known)
    )
    # A claim that was under way when the scheduler decided counts for nobody.
    late = next(iter(log.state.drawable))
    log.say(GroupClaimed(group=late, batch="l1-s0000"))
    assert set(log.state.drawable) == {f"g{number}" for number in range(num_groups)}
    log.open("l2-s0000", num_groups, lineage=2)
    assert [log.draw() for _ in range(num_groups)] == [f"g{n}" for n in range(num_groups)]


@given(outcomes)
def test_advantages_are_relative_to_the_baseline(group: list[Outcome]) -> None:
    for kind in ("mean", "mean_std"):
        weighed = group_advantages(group, kind)
        assert abs(sum(weighed.advantages)) < 1e-6
        for outcome, advantage in zip(group, weighed.advantages, strict=True):
            assert outcome.disposition != "excluded" or advantage == 0.0


@given(outcomes)
def test_excluded_executions_move_nobody(group: list[Outcome]) -> None:
    kept = [outcome for outcome in group if outcome.disposition != "excluded"]
    with_all = group_advantages(group, "mean_std")
    without = group_advantages(kept, "mean_std")
    assert with_all.zero_weight == without.zero_weight
    remaining = [
        advantage
        for outcome, advantage in zip(group, with_all.advantages, strict=True)
        if outcome.disposition != "excluded"
    ]
    assert remaining == list(without.advantages)


@given(outcomes)
def test_fewer_than_two_valid_rewards_have_zero_weight(group: list[Outcome]) -> None:
    num_valid = sum(outcome.disposition == "valid" for outcome in group)
    weighed = group_advantages(group, "mean_std")
    assert num_valid >= 2 or weighed.zero_weight
    assert not weighed.zero_weight or not any(weighed.advantages)


def test_drawing_waits_at_the_low_mark_of_one_micro_step_a_training_cell() -> None:
    log = Log()
    log.say(dispatched(range(6), version=0))
    for body in news(random.Random(1), 6):
        log.say(body)
    log.open("b", 6)

    def emitted(index: int) -> MicroStepEmitted:
        return MicroStepEmitted(
            batch="b",
            index=index,
            digest="0" * 64,
            executions=(),
            num_rows=1,
            row_tokens=1,
            num_tokens=1,
            num_targets=1,
        )

    assert log.draw() == "g0"
    log.say(emitted(0))
    assert log.draw() is None
    log.say(BatchJoined(cell=0, batch="b", version=0, lineage=1))
    assert log.draw() is None
    log.say(BatchJoined(cell=1, batch="b", version=0, lineage=1))
    assert log.draw() == "g1"
    log.say(emitted(1))
    assert log.draw() is None
    log.say(MicroStepClaimed(batch="b", index=0, cell=1, epoch=1))
    assert log.draw() == "g2"
    # The dead cell's claim is void: its micro-step is queued again, and the mark falls to one.
    log.say(EpochFenced(batch="b", epoch=1, lost=(1,), dismissed=(), members=(0,)))
    assert log.draw() is None


def test_only_valid_executions_of_weighted_groups_are_trained() -> None:
    log = Log()
    log.say(dispatched(range(2), version=0))
    scores = {
        "g0-e0": ("valid", 1.0),
        "g0-e1": ("valid", 0.0),
        "g0-e2": ("placeholder", 0.0),
        "g1-e0": ("valid", 1.0),
        "g1-e1": ("excluded", 0.0),
        "g1-e2": ("excluded", 0.0),
    }
    for execution, (kind, reward) in scores.items():
        log.say(final(execution, kind, reward))
        log.say(CallsSealed(execution=execution, num_calls=0, last_seq=0))
    log.open("b", 2)
    assert [log.draw(), log.draw()] == ["g0", "g1"]
    assert log.state.batch is not None
    assert [one.execution for one in trainees(log.state.batch)] == ["g0-e0", "g0-e1"]


def test_a_claim_beyond_b_is_void() -> None:
    log = Log()
    log.say(dispatched(range(2), version=0))
    for body in news(random.Random(1), 2):
        log.say(body)
    log.open("b", 1)
    assert log.draw() == "g0"
    log.say(GroupClaimed(group="g1", batch="b"))
    assert set(log.state.drawable) == {"g1"}
