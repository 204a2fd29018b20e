"""When it is owed to say that an execution is in quarantine, and what follows from it."""

from __future__ import annotations

import pytest

from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.groups import ExecutionOutcome, ExecutionQuarantined, GroupReady
from gyre.core.advantage import Outcome
from gyre.core.groups import (
    Batch,
    Group,
    JobGroups,
    Scored,
    evolve,
    next_quarantined,
    next_ready,
    trainees,
)
from gyre.testkit.trajectory_world import small_spec

DAMAGED = {"e1": "record 7, call c: it is recorded twice"}
OUTCOME = Outcome(disposition="valid", reward=1.0)


def state() -> JobGroups:
    """A group of two in the open batch, ready and weighted."""
    names = ("e0", "e1")
    group = Group(
        group="g",
        task="t",
        executions=names,
        version=0,
        lineage=1,
        order=0,
        num_kept=2,
        keep="first_finished",
        scores={name: Scored(outcome=OUTCOME, attempt=1) for name in names},
        batch="b",
    )
    group.ready = GroupReady(
        group="g",
        task="t",
        version=0,
        lineage=1,
        zero_weight=False,
        outcomes=tuple(
            ExecutionOutcome(execution=name, disposition="valid", reward=1.0, advantage=0.5)
            for name in names
        ),
    )
    batch = Batch(batch="b", num_groups=1, version=0, lineage=1, groups=[group])
    return JobGroups(
        job="j", groups={"g": group}, group_of=dict.fromkeys(names, group), batch=batch
    )


def test_it_is_said_once_with_the_record_and_its_execution_is_no_trainee() -> None:
    groups = state()
    due = next_quarantined(groups, DAMAGED)
    assert due == ExecutionQuarantined(group="g", execution="e1", error=DAMAGED["e1"])
    assert [one.execution for one in trainees(groups.batch)] == ["e0", "e1"]  # type: ignore[arg-type]
    evolve(groups, 12, due)
    assert next_quarantined(groups, DAMAGED) is None
    assert [one.execution for one in trainees(groups.batch)] == ["e0"]  # type: ignore[arg-type]
    assert groups.groups["g"].last_sequence == 12


def test_nobody_waits_for_the_seal_of_an_execution_in_quarantine() -> None:
    groups = state()
    group = groups.groups["g"]
    groups.batch, groups.spec = None, small_spec()
    group.batch, group.ready = None, None
    evolve(groups, 11, CallsSealed(execution="e0", num_calls=1, last_seq=0))
    assert next_ready(groups) is None
    due = next_quarantined(groups, DAMAGED)
    assert due is not None
    evolve(groups, 12, due)
    ready = next_ready(groups)
    assert ready is not None
    assert [one.reward for one in ready.outcomes] == [1.0, 1.0]


def trained(groups: JobGroups) -> None:
    assert groups.batch is not None
    groups.batch.emitted.add("e1")


def stepped(groups: JobGroups) -> None:
    groups.batch = None


def stepped_and_opened(groups: JobGroups) -> None:
    groups.batch = Batch(batch="b2", num_groups=1, version=1, lineage=1)


def dropped(groups: JobGroups) -> None:
    groups.groups["g"].dropped = True


def not_dispatched(groups: JobGroups) -> None:
    groups.group_of.clear()


@pytest.mark.parametrize("fate", [trained, stepped, stepped_and_opened, dropped, not_dispatched])
def test_it_is_not_said_of_what_was_trained_or_will_not_be_or_is_not_known(fate: object) -> None:
    groups = state()
    fate(groups)  # type: ignore[operator]
    assert next_quarantined(groups, DAMAGED) is None


def test_it_is_said_of_a_group_that_came_back() -> None:
    groups = state()
    groups.batch, groups.groups["g"].batch = None, None
    assert next_quarantined(groups, DAMAGED) is not None
