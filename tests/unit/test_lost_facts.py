"""What the services' folds make of a fact that cannot be read: an execution's own ends that one
execution, another of a job's ends the job, and what else the log says of either raises nothing."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gyre.adapters.journal import Fact
from gyre.cli.job_commands import _standing
from gyre.cli.report_delivery import delivery_html, lost_table
from gyre.contracts import subjects
from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scores import Evaluated
from gyre.core.cell import CellState, Holdings, evolve_cell, next_duty, orders
from gyre.core.delivery import Deliveries
from gyre.core.execution import Phase
from gyre.core.groups import JobGroups, evolve, next_ready
from gyre.core.scheduling.cluster import ClusterState, evolve_cluster, next_job_start
from gyre.evaluator.projection import statements_of
from gyre.evaluator.registry import Registry as EvaluatorRegistry
from gyre.proxy.executions import Registry as ProxyRegistry
from gyre.runner.registry import Registry as RunnerRegistry
from gyre.scheduler.orders import OrderDesk
from gyre.scheduler.views import job_view
from gyre.testkit.facts import AT_0, role_changed, terminated
from gyre.testkit.specs import job_spec

JOB, E = "job", "job-g0-e0"
ERROR = "GYRE_FACTS event 9 on facts.job.sched: event cannot be read: no JSON"
OF_JOB = FactLost(execution=None, error=ERROR)
OF_EXECUTION = FactLost(execution=E, error=ERROR)
SPEC = job_spec(executions_per_group=2, cells=1, phi=0.0)

SUBMITTED = sched.JobSubmitted(spec=SPEC, train_tasks=("t",), heldout_tasks=())
JOB_STARTED = sched.JobStarted(**AT_0, cells=(0,), lineage=1)
PLAN = sched.GroupPlan(group="job-g0", task="t", executions=(E, "job-g0-e1"))
DISPATCHED = sched.Dispatched(**AT_0, kind="training", groups=(PLAN,), version=0, lineage=1)
ORDER = sched.StartOrder(execution=E, group="job-g0", task="t", cell=0, seed=1)
ORDERED = sched.StartOrdered(**AT_0, orders=(ORDER,))
STARTED = run_events.Started(execution=E, group="job-g0", task="t")


def attempt(number: int) -> run_events.AttemptStarted:
    return run_events.AttemptStarted(
        execution=E, attempt=number, key_id="k", workspace=f"w{number}"
    )


def evaluated(execution: str) -> Evaluated:
    return Evaluated(
        execution=execution, attempt=1, evaluation="v", artifact="a", branch="", reward=1.0
    )


def fact(body: Body, sequence: int, subject: str = "") -> Fact:
    envelope = make_envelope(
        body,
        identity=f"{sequence:032x}",
        job=JOB,
        aggregate=subject or subjects.run(JOB, E),
        time=float(sequence),
        causation="",
    )
    return Fact(sequence=sequence, envelope=envelope)


# -- scheduler


def cluster_of(*bodies: Body) -> ClusterState:
    cluster = ClusterState()
    online = cell_events.AgentOnline(cell=0, incarnation="i", host="h", pid=1)
    evolve_cluster(cluster, 1, subjects.CLUSTER, online)
    for sequence, body in enumerate(bodies, start=2):
        evolve_cluster(cluster, sequence, JOB, body)
    return cluster


def test_a_queued_job_that_has_lost_a_fact_is_given_no_cells() -> None:
    assert next_job_start(cluster_of(SUBMITTED), 0.0) is not None
    assert next_job_start(cluster_of(SUBMITTED, OF_JOB), 0.0) is None


def test_a_job_whose_submission_is_lost_is_shown_with_what_is_wrong() -> None:
    cluster = cluster_of(OF_JOB, JOB_STARTED, DISPATCHED, STARTED)
    view = job_view(cluster.jobs[JOB])
    assert (view.status, view.reason, view.num_lost_facts) == ("queued", ERROR, 1)
    ended = sched.JobFinished(**AT_0, status="failed", reason="why")
    evolve_cluster(cluster, 9, JOB, ended)
    view = job_view(cluster.jobs[JOB])
    assert (view.status, view.reason, view.name) == ("failed", "why", "")


def test_the_cells_of_an_ended_job_are_free_once_they_have_left_it() -> None:
    ended = sched.JobFinished(**AT_0, status="failed", reason="why")
    cluster = cluster_of(SUBMITTED, JOB_STARTED, OF_JOB, ended)
    evolve_cluster(cluster, 20, "next", SUBMITTED)
    assert next_job_start(cluster, 0.0) is None
    evolve_cluster(cluster, 21, JOB, role_changed(0, "offline"))
    chosen = next_job_start(cluster, 0.0)
    assert chosen is not None
    assert chosen[0] == "next"


@pytest.mark.parametrize("lost", [OF_JOB, OF_EXECUTION])
@pytest.mark.parametrize("order_comes_first", [True, False])
def test_no_order_is_sent_again_of_what_has_ended(lost: FactLost, order_comes_first: bool) -> None:
    serving = (cell_events.TrainerReady(cell=0, pid=1), role_changed(0, "rollout"))
    last = (ORDERED, lost) if order_comes_first else (lost, ORDERED)
    cluster, desk = cluster_of(SUBMITTED, JOB_STARTED, *serving, DISPATCHED, *last), OrderDesk()
    desk.fold(JOB, ORDERED, 0.0)
    assert list(desk.due(cluster.jobs, 0.0)) == []
    assert desk.owed == {}


def test_a_job_that_runs_without_some_of_its_facts_says_so_in_the_list() -> None:
    cluster = cluster_of(SUBMITTED, JOB_STARTED, DISPATCHED, OF_EXECUTION)
    assert _standing(job_view(cluster.jobs[JOB])) == "running, 1 facts lost"


# -- trajectory


def test_a_group_waits_for_none_of_whose_facts_is_lost() -> None:
    state = JobGroups(job=JOB)
    other = "job-g0-e1"
    sealed = CallsSealed(execution=other, num_calls=0, last_seq=0)
    for sequence, body in enumerate(
        (SUBMITTED, DISPATCHED, OF_EXECUTION, evaluated(other), sealed, evaluated(E)), start=1
    ):
        evolve(state, sequence, body)
    ready = next_ready(state)
    assert ready is not None
    assert [one.disposition for one in ready.outcomes] == ["excluded", "valid"]


# -- runner


def told_runner(*facts: Fact) -> RunnerRegistry:
    registry = RunnerRegistry()
    for one in facts:
        registry.fold_history(one)
    return registry


SCHED = subjects.sched(JOB)
BEGUN = (fact(SUBMITTED, 1, SCHED), fact(DISPATCHED, 2, SCHED), fact(STARTED, 3))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # What is lost: the attempt's start, its failure, the end; behind it what came of it.
        ((fact(OF_EXECUTION, 4),), (1, 4)),
        ((fact(attempt(1), 4), fact(OF_EXECUTION, 5)), (1, 5)),
        ((fact(attempt(1), 4), fact(OF_EXECUTION, 5), fact(attempt(2), 6)), (2, 6)),
    ],
)
def test_the_runner_ends_the_harness_of_an_execution_that_has_lost_a_fact(
    history: tuple[Fact, ...], expected: tuple[int, int]
) -> None:
    registry = told_runner(*BEGUN, *history)
    [(job, state)] = registry.unfinished()
    assert (job, state.phase, (state.attempt, state.sequence)) == (JOB, Phase.RUNNING, expected)
    assert registry.cancellation((JOB, E)).is_set()
    assert not registry.claim((JOB, E))


def test_the_runner_finds_the_attempt_whose_execution_lost_its_start() -> None:
    registry = told_runner(*BEGUN[:2], fact(OF_EXECUTION, 3), fact(attempt(1), 4))
    [(_, state)] = registry.unfinished()
    assert (state.phase, state.attempt, state.workspace) == (Phase.RUNNING, 1, "w1")
    assert registry.cancellation((JOB, E)).is_set()


def test_the_runner_has_nothing_to_do_for_what_has_ended() -> None:
    end = fact(terminated(E), 5)
    assert told_runner(*BEGUN, fact(OF_EXECUTION, 4), end).unfinished() == []
    assert told_runner(*BEGUN[:2], fact(OF_EXECUTION, 3)).unfinished() == []


def test_a_score_that_is_lost_leaves_the_runners_own_subject_alone() -> None:
    lost = fact(OF_EXECUTION, 5, subjects.score(JOB, E))
    [(_, state)] = told_runner(*BEGUN, fact(attempt(1), 4), lost).unfinished()
    assert (state.phase, state.sequence) == (Phase.RUNNING, 4)


def test_the_runner_starts_nothing_of_a_job_that_has_lost_a_fact() -> None:
    registry = told_runner(*BEGUN, fact(attempt(1), 4), fact(OF_JOB, 5, SCHED))
    assert registry.never_starts((JOB, "job-g0-e1"))
    assert registry.cancellation((JOB, E)).is_set()
    lost_at_once = told_runner(fact(OF_JOB, 1, SCHED), fact(STARTED, 3), fact(attempt(1), 4))
    assert lost_at_once.unfinished() == []


# -- proxy


def test_the_proxy_revokes_the_key_of_an_execution_that_has_lost_a_fact() -> None:
    registry = ProxyRegistry()
    for sequence, body in enumerate((SUBMITTED, ORDERED, STARTED, attempt(1)), start=1):
        registry.evolve(JOB, sequence, body)
    assert registry.is_valid(JOB, E, 1)
    effects = registry.evolve(JOB, 9, OF_EXECUTION)
    assert (effects.revoked, effects.terminated) == ((E,), (E,))
    assert not registry.is_valid(JOB, E, 1)


@pytest.mark.parametrize("place", [0, 4])
def test_the_proxy_serves_nobody_of_a_job_that_has_lost_a_fact(place: int) -> None:
    registry = ProxyRegistry()
    told: list[Body] = [SUBMITTED, ORDERED, STARTED, attempt(1)]
    told.insert(place, OF_JOB)
    for sequence, body in enumerate(told, start=1):
        registry.evolve(JOB, sequence, body)
    assert not registry.is_valid(JOB, E, 1)
    assert not registry.may_become_valid(JOB, E, 2)


# -- evaluator


@pytest.mark.parametrize("lost", [OF_JOB, OF_EXECUTION])
def test_the_evaluator_scores_nothing_that_has_lost_a_fact(lost: FactLost) -> None:
    sealed = CallsSealed(execution=E, num_calls=0, last_seq=0)
    bodies = (SUBMITTED, STARTED, attempt(1), terminated(E), sealed)
    for place in range(1, len(bodies) + 1):
        registry = EvaluatorRegistry()
        told = [*bodies[:place], lost, *bodies[place:]]
        ready = [registry.fold(fact(body, n).envelope, n) for n, body in enumerate(told, start=1)]
        assert sum(map(len, ready)) == (place == len(bodies))  # it was closed before
        assert registry.get(JOB, E) is None
        assert registry.closed() == []
        assert registry.lose(JOB, E, "a call") == ()


def test_the_row_of_an_execution_that_has_lost_a_fact_says_excluded() -> None:
    [statement] = statements_of(fact(OF_EXECUTION, 1))
    assert "status" in str(statement)
    assert statements_of(fact(OF_JOB, 1)) == []


# -- cell


def test_a_cell_stops_at_once_when_its_job_has_lost_a_fact() -> None:
    state = CellState(cell=0)
    for sequence, body in enumerate((SUBMITTED, JOB_STARTED, OF_EXECUTION), start=1):
        state = evolve_cell(state, sequence, JOB, SCHED, body)
    held = Holdings(engine_version=(1, 0), trainer_version=(1, 0))
    assert not isinstance(next_duty(state, held), orders.StopJob)
    state = evolve_cell(state, 4, JOB, SCHED, OF_JOB)
    assert isinstance(next_duty(state, held), orders.StopJob)


@pytest.mark.parametrize(
    "late", [JOB_STARTED, sched.CellJoined(**AT_0, cell=0, index=1), ORDERED, DISPATCHED]
)
def test_a_decision_that_was_on_its_way_begins_no_job_that_has_lost_a_fact(late: Any) -> None:
    state = CellState(cell=0)
    elsewhere = sched.JobStarted(**AT_0, cells=(1,), lineage=1)
    for sequence, body in enumerate((SUBMITTED, elsewhere, OF_JOB, late), start=1):
        state = evolve_cell(state, sequence, JOB, SCHED, body)
    assert (state.job, state.others) == (None, {})
    assert next_duty(state, Holdings()) is None


# -- report


def test_lost_facts_are_told_with_what_is_wrong() -> None:
    deliveries = Deliveries()
    deliveries.fold(OF_EXECUTION)
    deliveries.fold(OF_JOB)
    assert deliveries.alarms() == (f"2 facts of the job cannot be read; the first, {ERROR}",)
    assert deliveries.summary()["lost_facts"] == [
        {"execution": E, "error": ERROR},
        {"execution": None, "error": ERROR},
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(lost_table(deliveries))
    shown = console.export_text()
    assert E in shown
    assert "the job, which ends there" in shown
    assert ERROR in delivery_html(deliveries)
