"""A job that is paused says why: in its view, and where its progress is watched."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from gyre.cli.progress import watch_job
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.http import JobView
from gyre.core.scheduling import JobState, evolve
from gyre.core.scheduling.deadlines import deadlines
from gyre.core.scheduling.parts import Burst, Cell
from gyre.scheduler.views import job_view
from gyre.testkit.specs import job_spec

FAILED = cell_events.CheckpointFailed(cell=0, version=2, lineage=1, error="no room")


def training_job() -> JobState:
    """Two cells; the core's burst has ended and its version 2 is not durable."""
    state = JobState(job="j", spec=job_spec(cells=2), status="running", version=2, published=1)
    state.cells = {
        number: Cell(index=number, cell=number, capacity=8, place=number, since=100.0)
        for number in range(2)
    }
    state.seat((0, 1), ())
    state.burst = replace(Burst(burst=1, first_step=1, num_steps=1), ended=True, since=100.0)
    state.set_role(state.cells[0], "to_rollout", 100.0)
    state.set_role(state.cells[1], "rollout")
    return state


def shown(view: JobView) -> str:
    """The line that progress says of a job in this state."""
    out = io.StringIO()
    watch_job(lambda: view.model_copy(update={"status": "failed"}), Console(file=out, width=300), 1)
    return out.getvalue()


def test_a_checkpoint_that_failed_pauses_the_job_and_says_why() -> None:
    state = training_job()
    assert list(deadlines(state)) != []
    evolve(state, 1, FAILED)
    view = job_view(state)
    assert (view.paused, view.pause_reason) == (True, "version 2 could not be saved: no room")
    assert "paused (version 2 could not be saved: no room)" in shown(view)
    assert list(deadlines(state)) == []


def test_once_resumed_everyones_time_begins_anew() -> None:
    state = training_job()
    evolve(state, 1, FAILED)
    evolve(state, 2, request_events.ResumeRequested(now=5000.0))
    view = job_view(state)
    assert (view.paused, view.pause_reason) == (False, "")
    assert "paused" not in shown(view)
    legs = [deadline.at - deadline.limit_s for deadline in deadlines(state)]
    assert legs
    assert set(legs) == {5000.0}


def test_what_a_cell_says_that_is_not_the_core_or_of_another_lineage_is_void() -> None:
    for body in (
        FAILED.model_copy(update={"cell": 1}),
        FAILED.model_copy(update={"lineage": 2}),
    ):
        state = training_job()
        evolve(state, 1, body)
        assert (state.paused, state.save_failed) == (False, False)


def test_a_resumed_job_that_was_paused_by_its_user_keeps_its_clocks() -> None:
    state = training_job()
    evolve(state, 1, request_events.PauseRequested(reason="paused by the user"))
    assert job_view(state).pause_reason == "paused by the user"
    evolve(state, 2, request_events.ResumeRequested(now=5000.0))
    assert state.burst is not None
    assert state.burst.since == 100.0
