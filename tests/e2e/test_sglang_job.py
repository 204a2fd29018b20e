"""The quickstart's job, two steps of it, on two cells that serve with the real SGLang: it trains,
both engines take what the core publishes, and their logprobs are the trainer's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.cli.demo_command import prepare
from gyre.cli.jobfile import load_job_file
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.consumption_audit import audit_consumption
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs

ROOT = Path(__file__).parents[2]
EXAMPLE = Path("examples/quickstart")
SEED, CELLS, STEPS, GROUPS = 1, 2, 2, 4
# Two SGLangs and two trainers share the cores: nothing of the job may be in a hurry.
PATIENT = {"timeout_s": 240}
JOB_DEADLINE_S = 800.0
# Engine and trainer compute the same numbers in another order, in fp32; nats a target.
MISMATCH = 1e-5

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(installed_python() is None, reason="SGLang is not installed: make sglang"),
]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The example's own file, smaller, with every path in it absolute."""
    monkeypatch.chdir(ROOT)
    raw = load_job_file(EXAMPLE / "job.yaml")
    assets = prepare(EXAMPLE, SEED)
    raw["model"]["path"] = str(assets / "model")
    raw["tasks"] = {"train": str(assets / "tasks" / "train")}
    raw["engine"] = {"kind": "sglang"}
    raw["cells"] = {"count": CELLS, "capacity": 4}
    raw["harness"] |= PATIENT
    raw["rollout"]["call_timeout_s"] = 120
    raw["schedule"] |= {
        "executions_per_group": 4,
        "groups_per_step": GROUPS,
        "mu": 1,
        "num_steps": STEPS,
    }
    return raw


def test_the_quickstarts_job_trains_on_cells_that_serve_with_sglang(
    job: dict[str, Any], start_stack: Callable[..., Any]
) -> None:
    stack = start_stack(cells=CELLS)
    view = stack.ended(stack.client.submit(job).id, deadline_s=JOB_DEADLINE_S)
    facts, calls = stack.read(view.id)

    assert (view.status, view.reason) == ("succeeded", "all steps done"), view
    log = RunLog.of(facts, calls)
    audit(log, num_steps=STEPS, groups_per_step=GROUPS, blobs=stack.blobs)
    audit_consumption(facts, calls, stack.blobs)
    assert first_decision_that_differs(facts) is None
    assert log.failed_calls == 0

    bodies = [fact.body for fact in facts]
    assert not [body for body in bodies if isinstance(body, cell_events.EngineLost)]
    assert all(len(pids) == 1 for pids in log.role_pids.values())
    published = [body for body in bodies if isinstance(body, cell_events.WeightsPublished)]
    assert [body.version for body in published] == list(range(1, STEPS + 1))
    # The core trained while the other took both; it came back with the last.
    assert _served(bodies) >= {(1, 1), (1, 2), (0, 2)}
    assert {span.version for call in _committed(calls) for span in call.spans} >= {0, 1}
    first, *_ = log.steps
    assert not any(step.skipped for step in log.steps)
    assert [one.version for one in first.statistics.mismatches] == [0]
    assert first.statistics.mismatches[0].mean_abs < MISMATCH
    assert first.statistics.grad_norm > 0
    for cell in range(CELLS):
        assert "sglang" in (stack.home / "logs" / f"engine-{cell}.log").read_text().lower()


def _served(bodies: list[Any]) -> set[tuple[int, int]]:
    """(cell, version) of all that engines have confirmed."""
    kinds = cell_events.WeightsLoaded | cell_events.RoleChanged
    said = [body for body in bodies if isinstance(body, kinds)]
    return {(body.cell, body.version) for body in said if getattr(body, "role", "") != "training"}


def _committed(calls: list[Any]) -> list[CallRecorded]:
    bodies = [fact.body for fact in calls if isinstance(fact.body, CallRecorded)]
    return [body for body in bodies if body.outcome == "committed"]
