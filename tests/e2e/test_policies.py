"""The baselines run a job for real: the same services, another policy; their logs add up."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.journal import Fact
from gyre.cli.client import ApiClient
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.http import JobView
from gyre.embedded import control
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs, read_run
from gyre.testkit.small_job import write_small_job

STEPS, GROUPS = 4, 4
POOL_CELL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished job: its facts, and the log sorted by kind."""

    view: JobView
    facts: list[Fact]
    log: RunLog

    def bodies(self, kind: type[Body]) -> list[Any]:
        return [fact.body for fact in self.facts if isinstance(fact.body, kind)]

    def members(self) -> list[tuple[int, ...]]:
        return [step.members for step in self.log.steps]


@pytest.mark.timeout(120)
def test_a_fixed_split_trains_from_first_to_last_step_and_publishes_without_leaving(
    tmp_path: Path,
) -> None:
    run = _run(tmp_path, policy="async", training_cells=2, phi=1.0, mu=1)
    roles = run.bodies(cell_events.RoleChanged)
    ended = run.bodies(sched.BurstEnded)

    assert [end.staying_satellites for end in ended] == [(1,)] * (STEPS - 1) + [()]
    assert [end.core_stays for end in ended] == [True] * (STEPS - 1) + [False]
    assert [role.cell for role in roles if role.role == "training"] == [0, 1]
    assert {body.confirmed_by for body in run.bodies(cell_events.WeightsPublished)} == {(2,)}
    # After a publication the satellite holds what the core updated without it: it pulls, and joins.
    assert (0, 1) in run.members()[1:]


@pytest.mark.timeout(120)
def test_colocated_cells_switch_at_waterlevel_zero_and_train_a_whole_burst_together(
    tmp_path: Path,
) -> None:
    run = _run(tmp_path, policy="colocate", streaming=False, phi=0.0, mu=2)
    moves = run.bodies(sched.TransitionStarted)

    assert [(move.cell, move.waterlevel, move.moves) for move in moves] == [
        (cell, 0, ()) for _ in range(STEPS // 2) for cell in (0, 1, 2)
    ]
    assert all(not end.core_stays for end in run.bodies(sched.BurstEnded))
    assert {body.confirmed_by for body in run.bodies(cell_events.WeightsPublished)} <= {
        (1, 2),
        (2,),
        (1,),
        (),
    }
    assert (0, 1, 2) in run.members()


@pytest.mark.timeout(120)
def test_a_pool_cell_only_ever_serves_and_counts_in_every_publication(tmp_path: Path) -> None:
    run = _run(tmp_path, cells={"count": 2, "pool_count": 1, "pool_capacity": 5}, phi=0.5, mu=2)
    mine = [body for body in run.bodies(cell_events.RoleChanged) if body.cell == POOL_CELL]
    published = run.bodies(cell_events.WeightsPublished)

    assert all(body.role != "training" and body.trainer_pid is None for body in mine)
    assert [body.role for body in mine if body.role == "rollout"] == ["rollout"]
    assert len(published) == STEPS // 2
    assert all(POOL_CELL in body.confirmed_by for body in published)
    assert any(
        order.cell == POOL_CELL for body in run.bodies(sched.StartOrdered) for order in body.orders
    )
    assert all(set(members) <= {0, 1} for members in run.members())


def _run(tmp_path: Path, *, cells: dict[str, Any] | None = None, **schedule: Any) -> Run:
    """The small job under a policy on a stack of its own; audits its log."""
    job = write_small_job(tmp_path / "job", num_steps=STEPS, groups_per_step=GROUPS, **schedule)
    job["cells"] |= cells or {}
    job["admission"] = {"row_tokens": 512, "tokens_per_micro_step": 512}
    home = tmp_path / "state"
    info = control.up(home, cells=3, owner=os.getpid())
    try:
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            view = _wait(client, client.submit(job).id, deadline_s=90)
        assert (view.status, view.reason) == ("succeeded", "all steps done")
        facts, calls = asyncio.run(read_run(info.urls["nats"], view.id))
    finally:
        control.down(home, purge=False)
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=DirectoryBlobStore(home / "blobs"))
    assert log.failed_calls == 0
    assert first_decision_that_differs(facts) is None
    return Run(view=view, facts=facts, log=log)


def _wait(client: ApiClient, job: str, deadline_s: float) -> JobView:
    deadline = time.monotonic() + deadline_s
    while (view := client.job(job)).status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < deadline, f"not finished: {view}"
        time.sleep(0.2)
    return view
