"""What is said of a step: sums that add over units and cells, and when it is refused."""

from __future__ import annotations

import pytest
import torch

from gyre.cell_agent.trainer.batch.batch_record import (
    BatchRecord,
    merged,
    report_empty,
    report_micro_step,
    report_non_finite,
)
from gyre.cell_agent.trainer.batch.statistics import (
    Totals,
    count_ratios,
    execution_totals,
    target_totals,
)
from gyre.contracts.events.steps import RATIO_EDGES, StepStatistics
from gyre.core.microstep import ExecutionInfo, MicroStep
from gyre.core.mismatch import Mismatch
from gyre.core.objective import ObjectiveSettings
from gyre.objective import Targets, TokenPolicy, objective_loss

SETTINGS = ObjectiveSettings(
    name="gspo_token", clip_low=0.995, clip_high=1.005, token_weight_cap=5.0, loss_cap=100.0
)


def totals_of(log_ratios: list[float], versions: list[int | None]) -> Totals:
    """One execution of advantage 1 whose targets have these log-ratios."""
    logprobs = torch.full((len(log_ratios),), -1.0, dtype=torch.float64)
    targets = Targets(
        execution=torch.zeros(len(log_ratios), dtype=torch.int64),
        behaviour_logprobs=logprobs - torch.tensor(log_ratios, dtype=torch.float64),
        advantages=torch.ones(1, dtype=torch.float64),
        num_targets=torch.tensor([len(log_ratios)]),
        normalizer=4,
    )
    result = objective_loss(logprobs, targets, SETTINGS)
    sums = target_totals(
        TokenPolicy(logprobs=logprobs, entropy=torch.full_like(logprobs, 0.5)),
        targets,
        result,
        versions=torch.tensor([version or 0 for version in versions]),
        versioned=torch.tensor([version is not None for version in versions]),
    )
    return sums.plus(execution_totals(result.ratios, result.kept))


def mismatch(version: int | None, num_targets: int, mean_abs: float) -> Mismatch:
    return Mismatch(
        version=version,
        num_targets=num_targets,
        abs_sum=mean_abs * num_targets,
        kl_sum=0.0,
        max_abs=mean_abs,
    )


def record_of(*found: Mismatch) -> BatchRecord:
    num_targets = sum(one.num_targets for one in found)
    return BatchRecord(totals=Totals(num_targets=num_targets, mismatches=found))


def micro_step(index: int) -> MicroStep:
    """A placeholder's."""
    info = ExecutionInfo(
        execution=f"e{index}", group="g", advantage=-1.0, num_targets=0, temperature=1.0
    )
    return MicroStep(
        batch="b",
        index=index,
        row_tokens=8,
        window_rows=1,
        normalizer=4,
        executions=(info,),
        rows=(),
    )


def test_totals_of_parts_and_cells_are_those_of_the_whole() -> None:
    whole = totals_of([0.1, 0.2, -0.3, 0.0], [3, 4, 3, None])
    first, second = totals_of([0.1, 0.2], [3, 4]), totals_of([-0.3, 0.0], [3, None])
    added = first.plus(second)
    assert added.token_ratio_counts == whole.token_ratio_counts
    assert [m.version for m in added.mismatches] == [3, 4, None]
    for one, other in zip(added.mismatches, whole.mismatches, strict=True):
        assert (one.version, one.num_targets) == (other.version, other.num_targets)
        assert one.abs_sum == pytest.approx(other.abs_sum, rel=1e-12)
        assert one.kl_sum == pytest.approx(other.kl_sum, rel=1e-12)
        assert one.max_abs == other.max_abs
    assert (added.num_targets, added.entropy) == (4, 2.0)


def test_a_steps_figures_are_means_over_executions_or_targets() -> None:
    masked = totals_of([0.1, 0.2], [3, 3])
    kept = totals_of([0.0], [4])
    far = totals_of([-5.0, 2.0], [4, 4])
    step = masked.plus(kept).plus(far).as_step()
    said = StepStatistics(**step, grad_norm=0.0, lr=0.0, seconds=0.0)
    assert said.num_executions == 3
    assert said.clip_fraction == pytest.approx(1 / 3)
    assert said.clipped_targets == pytest.approx(2 / 5)
    assert said.weight_capped == pytest.approx(1 / 5)
    assert said.entropy == 0.5
    assert said.mean_abs_logprob_diff == pytest.approx(7.3 / 5)
    assert said.max_abs_logprob_diff == pytest.approx(5.0)
    assert [(m.version, m.num_targets) for m in said.mismatches] == [(3, 2), (4, 3)]
    assert sum(said.ratio_counts) == 3
    assert sum(said.token_ratio_counts) == 5


def test_a_ratio_is_counted_between_the_edges_around_it() -> None:
    counts = count_ratios(torch.tensor([0.0, 1.0, 1.001, 1.005, 5e9], dtype=torch.float64))
    assert len(counts) == len(RATIO_EDGES) + 1
    below, one, above = 0, RATIO_EDGES.index(1.0) + 1, RATIO_EDGES.index(1.005) + 1
    expected = {below: 1, one: 2, above: 1, len(RATIO_EDGES): 1}
    assert {place: count for place, count in enumerate(counts) if count} == expected


def test_the_records_of_cells_cross_as_bytes_and_come_out_in_order() -> None:
    core = report_empty(micro_step(2)).record.plus(record_of(mismatch(3, 5, 0.25)))
    other = report_empty(micro_step(0)).record.plus(record_of(mismatch(None, 2, 0.5)))
    step = merged([core.to_bytes(), BatchRecord().to_bytes(), other.to_bytes()])
    assert [(one.execution, one.micro_step) for one in step.executions] == [("e0", 0), ("e2", 2)]
    assert step.totals == core.totals.plus(other.totals)
    assert step.totals.num_micro_steps == 2
    assert BatchRecord.of_bytes(step.to_bytes()) == step


def test_a_placeholder_is_recorded_and_is_in_no_mean() -> None:
    step = micro_step(0)
    policy = TokenPolicy(logprobs=torch.zeros(0), entropy=torch.zeros(0))
    targets = Targets(
        execution=torch.zeros(0, dtype=torch.int64),
        behaviour_logprobs=torch.zeros(0, dtype=torch.float64),
        advantages=torch.full((1,), -1.0, dtype=torch.float64),
        num_targets=torch.zeros(1, dtype=torch.int64),
        normalizer=4,
    )
    result = objective_loss(policy.logprobs, targets, SETTINGS)
    nothing = torch.zeros(0, dtype=torch.int64)
    sums = target_totals(policy, targets, result, versions=nothing, versioned=nothing.bool())
    reported = report_micro_step(step, sums, result, Totals())
    assert reported.record == report_empty(step).record
    assert reported.record.totals.num_executions == 0
    assert [one.execution for one in reported.record.executions] == ["e0"]


def test_a_micro_step_that_is_not_finite_refuses_the_step_and_is_named() -> None:
    records = [
        report_non_finite(micro_step(n), "2 token losses", Totals()).record for n in range(5)
    ]
    refusal = merged([record.to_bytes() for record in records]).refusal(None)
    assert refusal.startswith("non_finite_loss: micro-step 0: 2 token losses; micro-step 1: ")
    assert refusal.endswith("; 2 more")
    assert records[0].executions[0].ratio is None
    assert records[0].totals.loss == 0.0


def test_a_mismatch_beyond_the_bound_names_its_versions() -> None:
    record = record_of(mismatch(3, 100, 0.05), mismatch(4, 50, 0.4), mismatch(None, 50, 0.2))
    assert record.refusal(None) == record.refusal(0.5) == ""
    assert record.refusal(0.1) == (
        "mismatch: trainer and engines differ by more than objective.max_mismatch = 0.1 nats a "
        "target: version 4 by 0.4 over 50 targets, version unknown by 0.2 over 50 targets"
    )
    assert record_of(mismatch(3, 100, float("nan"))).refusal(0.1) != ""


def test_a_version_of_a_few_stray_targets_is_not_judged() -> None:
    assert record_of(mismatch(3, 991, 0.0), mismatch(4, 9, 9.0)).refusal(0.1) == ""
    assert record_of(mismatch(3, 990, 0.0), mismatch(4, 10, 9.0)).refusal(0.1) != ""
