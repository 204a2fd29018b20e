"""The baselines run a job for real: the same services, another policy; their logs add up. Two
measure their held-out set while they train."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.journal import Fact
from gyre.cli.app import app
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.http import JobView
from gyre.testkit.consumption_audit import audit_consumption
from gyre.testkit.heldout_audit import HeldoutAudit, sampled_versions
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs
from gyre.testkit.small_job import write_small_job

STEPS, GROUPS = 4, 4
POOL_CELL = 2
HELDOUT_TASKS, RESERVED = 2, 1
MEASURING = {"heldout_every": 1, "heldout_capacity": RESERVED}
# A core that needs half a second for a micro-step leaves some to whoever joins it late.
SLOW_CORE = {"emulate": [{"training_tokens_per_s": 1000.0}, {}, {}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished job: its facts and calls, the log sorted by kind, and its report: what `gyre
    report` prints, and the text of its files by name."""

    view: JobView
    facts: list[Fact]
    calls: list[Fact]
    log: RunLog
    blobs: DirectoryBlobStore
    printed: str
    report: dict[str, str]

    def bodies(self, kind: type[Body]) -> list[Any]:
        return [fact.body for fact in self.facts if isinstance(fact.body, kind)]

    def members(self) -> list[tuple[int, ...]]:
        return [step.members for step in self.log.steps]


@pytest.mark.timeout(360)
def test_a_fixed_split_trains_from_first_to_last_step_publishes_without_leaving_and_measures(
    tmp_path: Path, stack: Any
) -> None:
    run = _run(
        tmp_path,
        stack,
        cells=SLOW_CORE,
        policy="async",
        training_cells=2,
        phi=1.0,
        mu=1,
        evaluation=MEASURING,
    )
    roles = run.bodies(cell_events.RoleChanged)
    ended = run.bodies(sched.BurstEnded)

    assert [end.staying_satellites for end in ended] == [(1,)] * (STEPS - 1) + [()]
    assert [end.core_stays for end in ended] == [True] * (STEPS - 1) + [False]
    assert [role.cell for role in roles if role.role == "training"] == [0, 1]
    # Who trained may serve again when the last step's weights come.
    confirmed = [body.confirmed_by for body in run.bodies(cell_events.WeightsPublished)]
    assert confirmed[:-1] == [(2,)] * (STEPS - 1)
    assert confirmed[-1] in [(2,), (1, 2)]
    # Each step is a burst's last, so the core alone has its update: a satellite that takes part
    # after it has pulled the weights of that batch.
    joined = [body for body in run.bodies(cell_events.BatchJoined) if body.cell == 1]
    opened = {body.batch: body.version for body in run.bodies(sched.BatchOpened)}
    assert all(body.version == opened[body.batch] for body in joined)
    assert any(body.version > 0 for body in joined)
    _measured_while_it_trained(run)


@pytest.mark.timeout(360)
def test_colocated_cells_switch_at_waterlevel_zero_and_train_a_whole_burst_together(
    tmp_path: Path, stack: Any
) -> None:
    schedule = {"policy": "colocate", "streaming": False, "phi": 0.0, "mu": 2}
    run = _run(tmp_path, stack, cells=SLOW_CORE, **schedule)
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


@pytest.mark.timeout(360)
def test_a_pool_cell_only_ever_serves_counts_in_every_publication_and_takes_measurements(
    tmp_path: Path, stack: Any
) -> None:
    cells = {"count": 2, "pool_count": 1, "pool_capacity": 5}
    run = _run(tmp_path, stack, cells=cells, evaluation=MEASURING, phi=0.5, mu=2)
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
    _measured_while_it_trained(run)


def _measured_while_it_trained(run: Run) -> None:
    """Each due version was measured on slots that training did without, none of it was trained, and
    the report shows each version's score."""
    audit = HeldoutAudit.of(run.facts, run.blobs)
    versions = [one.version for one in audit.measurements]

    assert versions[0] == run.bodies(cell_events.WeightsPublished)[0].version
    assert versions == sorted(set(versions))
    assert all(len(one.executions) == HELDOUT_TASKS for one in audit.measurements)
    assert audit.most_measuring == RESERVED
    assert audit.num_blocked > 0
    rows = json.loads(run.report["report.json"])["heldout_between"]
    assert [row["version"] for row in rows] == versions
    for one, row in zip(audit.measurements, rows, strict=True):
        assert (row["reward"], row["tasks"]) == (pytest.approx(one.mean), HELDOUT_TASKS)
        assert f"held-out reward at version {one.version} " in run.printed
        assert f"<td>{one.version}</td><td>{one.mean:.3f} ±" in run.report["report.html"]
        assert sampled_versions(run.calls, one)[0] == one.version


def _run(
    tmp_path: Path,
    stack: Any,
    *,
    cells: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    **schedule: Any,
) -> Run:
    """The small job under a policy, its log audited. evaluation: of a held-out set, which there is
    only then."""
    schedule |= {"num_steps": STEPS, "groups_per_step": GROUPS}
    num_heldout = HELDOUT_TASKS if evaluation else 0
    job = write_small_job(tmp_path / "job", num_heldout=num_heldout, **schedule)
    job["cells"] |= cells or {}
    job["evaluation"] = evaluation or {}
    job["admission"] = {"row_tokens": 512, "tokens_per_micro_step": 512}
    name = stack.client.submit(job).id
    try:
        view = stack.ended(name)
    finally:
        stack.client.cancel(name)  # to no effect on a job that is over: the next one gets its cells
    assert (view.status, view.reason) == ("succeeded", "all steps done")
    facts, calls = stack.read(view.id)
    printed = _gyre_report(stack.home, view.id, tmp_path / "report")
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=stack.blobs)
    audit_consumption(facts, calls, stack.blobs)
    assert log.failed_calls == 0
    assert first_decision_that_differs(facts) is None
    files = {path.name: path.read_text("utf-8") for path in (tmp_path / "report").iterdir()}
    return Run(
        view=view,
        facts=facts,
        calls=calls,
        log=log,
        blobs=stack.blobs,
        printed=printed,
        report=files,
    )


def _gyre_report(home: Path, job: str, out: Path) -> str:
    arguments = ["report", job, "--home", str(home), "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
