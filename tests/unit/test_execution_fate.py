"""What the facts say of one execution: whether it is trained, and why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import (
    ExecutionOutcome,
    ExecutionQuarantined,
    GroupClaimed,
    GroupReady,
    MicroStepEmitted,
)
from gyre.contracts.events.scheduling import (
    BatchOpened,
    Dispatched,
    GroupDropped,
    GroupPlan,
    JobSubmitted,
    Restored,
)
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.core.execution_fate import ExecutionFacts, Fate
from gyre.core.scheduling.plans import job_of
from gyre.testkit.trajectory_world import small_spec

JOB, GROUP, BATCH = "job", "job-g0000", "l1-s0000"
EXECUTIONS = tuple(f"{GROUP}-e{place}" for place in range(4))
E = EXECUTIONS[0]


def dispatched(kind: str = "training") -> Dispatched:
    plan = GroupPlan(group=GROUP, task="t", executions=EXECUTIONS)
    return Dispatched.model_validate(
        {"based_on": 0, "now": 0.0, "kind": kind, "groups": (plan,), "version": 0, "lineage": 1}
    )


def scored(reward: float = 1.0) -> Evaluated:
    return Evaluated(
        execution=E, attempt=2, evaluation="v", artifact="0" * 64, branch="b", reward=reward
    )


def ready(disposition: str = "valid", *, zero_weight: bool = False) -> GroupReady:
    outcome = {"execution": E, "disposition": disposition, "reward": 1.0, "advantage": 0.5}
    return GroupReady(
        group=GROUP,
        task="t",
        version=0,
        lineage=1,
        outcomes=(ExecutionOutcome.model_validate(outcome),),
        zero_weight=zero_weight,
    )


def emitted(index: int) -> MicroStepEmitted:
    return MicroStepEmitted(
        batch=BATCH, index=index, digest="0" * 64, executions=(E,), num_rows=1, row_tokens=8,
        num_tokens=8, num_targets=2,
    )  # fmt: skip


OPENED = BatchOpened(based_on=0, now=0.0, batch=BATCH, step=0, version=0, lineage=1, num_groups=1)
DROPPED = GroupDropped(based_on=0, now=0.0, group=GROUP, staleness=9, queued=(), running=())
CLAIMED = GroupClaimed(group=GROUP, batch=BATCH)


def fate(*facts: Body, execution: str = E) -> Fate | None:
    folded = ExecutionFacts(JOB, execution)
    submitted = JobSubmitted(spec=small_spec(), train_tasks=("t",), heldout_tasks=())
    for sequence, body in enumerate((submitted, *facts), start=1):
        folded.fold(sequence, body)
    return folded.fate()


def test_what_is_known_of_an_execution_grows_with_the_facts() -> None:
    known = Fate(job=JOB, execution=E, group=GROUP, task="t")
    assert fate() is None
    assert fate(dispatched()) == known
    scoring = (dispatched(), scored())
    assert fate(*scoring) == replace(known, attempt=2, reward=1.0)
    weighed = (*scoring, ready())
    assert fate(*weighed) == replace(known, attempt=2, reward=1.0, advantage=0.5)
    drawn = (*weighed, OPENED, CLAIMED)
    assert fate(*drawn) == replace(known, attempt=2, reward=1.0, advantage=0.5, batch=BATCH)
    out = fate(*drawn, emitted(3))
    assert out == replace(known, attempt=2, reward=1.0, advantage=0.5, batch=BATCH, micro_step=3)
    assert fate(dispatched(), execution="somebody") is None


def test_a_restore_takes_an_open_batchs_execution_back() -> None:
    restored = Restored(
        based_on=0, now=0.0, lineage=2, version=0, checkpoint="c", returned_groups=()
    )
    found = fate(dispatched(), scored(), ready(), OPENED, CLAIMED, emitted(0), restored)
    assert found is not None
    assert (found.batch, found.micro_step, found.out) == (None, None, None)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((dispatched("heldout"),), "it measures a held-out score"),
        (
            (dispatched(), ExecutionExcluded(execution=E, reason="broken scorer")),
            "it is excluded: broken scorer",
        ),
        (
            (dispatched(), PlaceholderScored(execution=E, reason="no image")),
            "a placeholder stands for it: no image",
        ),
        (
            (dispatched(), scored(), ready("surplus")),
            "it is surplus: its group kept others",
        ),
        (
            (dispatched(), scored(), ready(zero_weight=True)),
            "its group has no weight: fewer than two valid rewards, or all are equal",
        ),
        (
            (dispatched(), scored(), ready(), DROPPED),
            "its group was dropped",
        ),
        (
            (dispatched(), ExecutionQuarantined(group=GROUP, execution=E, error="record 3")),
            "its records are in quarantine: record 3",
        ),
    ],
)
def test_why_nothing_of_it_is_trained_is_said(facts: tuple[Body, ...], words: str) -> None:
    found = fate(*facts)
    assert found is not None
    assert found.out == words


@pytest.mark.parametrize(
    ("execution", "job"),
    [
        ("job-g0000-e0", "job"),
        ("my-job-g0-g12345-e15", "my-job-g0"),
        ("job-hb0003-e0", "job"),
        ("job-ha0003-e0", "job"),
        ("job-hm1v20-0003-e0", "job"),
        ("f3ad38e5", None),
        ("job-g0000", None),
        ("-g0000-e0", None),
    ],
)
def test_an_executions_name_begins_with_its_jobs(execution: str, job: str | None) -> None:
    assert job_of(execution) == job
