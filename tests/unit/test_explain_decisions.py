"""`gyre replay --diff`: every recorded decision comes out again, and one that does not is named."""

from __future__ import annotations

from functools import cache

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.explain import Recheck, before_each_decision, first_difference
from gyre.core.scheduling.cluster import ClusterState, cancel_of_queued, evolve_cluster
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

Facts = list[tuple[int, Body]]


@cache
def _lived() -> tuple[tuple[int, Body], ...]:
    world = World(job_spec(heldout=False, num_steps=4), lambda number: 1.0 + number % 3)
    world.run()
    return tuple((sequence, body) for sequence, _, body in world.log)


def _changed(kind: type[Body], **changes: object) -> tuple[int, Facts]:
    """The lived log with the first fact of `kind` changed, and that one's sequence."""
    facts = list(_lived())
    place = next(i for i, (_, body) in enumerate(facts) if isinstance(body, kind))
    sequence, body = facts[place]
    facts[place] = (sequence, body.model_copy(update=changes))
    return sequence, facts


def test_no_decision_of_a_lived_job_differs() -> None:
    recheck = Recheck("job")
    for sequence, body in _lived():
        recheck.see(sequence, body)
    assert recheck.first is None
    assert recheck.num == sum(hasattr(body, "based_on") for _, body in _lived()) - 1


def test_a_changed_decision_is_named_with_the_fields_that_differ() -> None:
    sequence, facts = _changed(sched.TransitionStarted, cell=2)
    difference = first_difference("job", facts)
    assert difference is not None
    assert difference.sequence == sequence
    assert difference.fields() == {"cell": (2, 0)}


def test_a_decision_of_another_kind_shows_no_fields() -> None:
    facts = [(sequence, body) for sequence, body in _lived() if sequence < 40]
    decided_at = facts[-1][0] + 1
    wrong = sched.JobFinished(based_on=facts[-1][0], now=1.0, status="failed", reason="no reason")
    difference = first_difference("job", [*facts, (decided_at, wrong)])
    assert difference is not None
    assert difference.fields() == {}
    assert "no reason" in str(difference)


def test_a_fact_that_the_decision_did_not_know_is_not_held_against_it() -> None:
    """A fact appended between `based_on` and the decision was on its way: folded only after it."""
    facts = list(_lived())
    place = next(i for i, (_, body) in enumerate(facts) if isinstance(body, sched.BatchOpened))
    sequence, opened = facts[place]
    assert isinstance(opened, sched.BatchOpened)
    lost = cell_events.TrainerLost(cell=0, error="killed")
    doubled = [(2 * number, _rebased(body)) for number, body in facts]
    late = (2 * sequence - 1, lost)
    upto = [*doubled[:place], late, doubled[place]]
    assert first_difference("job", upto) is None
    known = doubled[place][1].model_copy(update={"based_on": late[0]})
    assert first_difference("job", [*doubled[:place], late, (2 * sequence, known)]) is not None


def _rebased(body: Body) -> Body:
    based_on = getattr(body, "based_on", None)
    return body if based_on is None else body.model_copy(update={"based_on": 2 * based_on})


def test_what_the_cluster_decides_is_not_asked_again() -> None:
    """A job cancelled before it had cells is ended over its own decider's head."""
    cluster, facts = ClusterState(), []
    for body in (
        sched.JobSubmitted(spec=job_spec(), train_tasks=("t",), heldout_tasks=()),
        request_events.CancelRequested(reason="by the user"),
    ):
        facts.append((len(facts) + 1, body))
        evolve_cluster(cluster, len(facts), "job", body)
    ended = cancel_of_queued(cluster, 5.0)
    assert ended is not None
    facts.append((len(facts) + 1, ended[1]))
    assert first_difference("job", facts) is None
    assert list(before_each_decision("job", facts)) == []
    assert first_difference("job", [f for f in _lived() if f[0] < 3]) is None
