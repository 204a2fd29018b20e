"""The comparison of policies: what its files promise."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gyre.cli.errors import CommandError
from gyre.cli.jobfile import load_job_file
from gyre.cli.policy_schedules import read_schedules, set_policy
from gyre.contracts.job import JobSpec
from gyre.core.staleness import expected_staleness
from gyre.testkit.modules import load_module

EXAMPLES = Path(__file__).parents[2] / "examples"
POLICIES = EXAMPLES / "policies"
QUICKSTART = EXAMPLES / "quickstart"


def module(name: str) -> ModuleType:
    return load_module(POLICIES / f"{name}.py", f"policies_{name}")


def job(example: Path, policy: str) -> JobSpec:
    raw: dict[str, Any] = load_job_file(example / "job.yaml")
    set_policy(raw, example, policy)
    return JobSpec.model_validate(raw)


@pytest.mark.parametrize("example", [QUICKSTART, POLICIES], ids=lambda path: path.name)
def test_an_examples_policies_are_valid_and_share_one_mean_staleness(example: Path) -> None:
    names = list(read_schedules(example))
    schedules = [job(example, name).schedule for name in names]

    assert names[0] == "gyre"
    assert {schedule.policy for schedule in schedules} == {"gyre", "async", "colocate"}
    assert {expected_staleness(s.phi, s.mu) for s in schedules} == {1.0}
    assert all(schedule.num_steps % schedule.mu == 0 for schedule in schedules)


def test_the_default_policy_of_the_demo_is_its_job_file() -> None:
    written = JobSpec.model_validate(load_job_file(QUICKSTART / "job.yaml"))

    assert job(QUICKSTART, "gyre") == written


def test_a_policy_that_the_example_does_not_have_is_one_line() -> None:
    with pytest.raises(CommandError, match=r"policies\.yaml has gyre, async, colocate"):
        set_policy({"schedule": {}}, QUICKSTART, "nix")


@pytest.mark.parametrize("text", ["", "gyre: 3\n", "- a\n", "a: [\n"])
def test_a_policies_file_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "policies.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(CommandError) as refused:
        read_schedules(tmp_path)
    assert "policies.yaml" in str(refused.value).partition("\n")[0]


def test_turns_are_heavy_tailed_and_only_their_order_depends_on_the_seed() -> None:
    prepare = module("prepare")
    turns = prepare.turns_of_tasks(48, 1)

    assert turns == prepare.turns_of_tasks(48, 1) != prepare.turns_of_tasks(48, 2)
    assert sorted(turns) == sorted(prepare.turns_of_tasks(48, 2))
    assert max(turns) >= 10 * statistics.median(turns)
    longest = sorted(turns)[-len(turns) // 5 :]
    assert sum(longest) > sum(turns) / 2


def test_the_jobs_work_is_split_as_the_papers_and_the_elastic_policy_is_predicted_to_win() -> None:
    prepare, predict = module("prepare"), module("predict")
    turns = prepare.turns_of_tasks(48, prepare.SEED)
    specs = {name: job(POLICIES, name) for name in read_schedules(POLICIES)}
    spec = specs["gyre"]
    workload = predict.TurnsWorkload(spec=spec, turns=turns)
    groups = [workload.group(number, 6) for number in range(48)]
    rollout = sum(sum(group.durations) for group in groups) / spec.cells.capacity
    training = sum(sum(group.micro_steps) for group in groups)
    totals = {name: predict.predicted_total_s(each, turns) for name, each in specs.items()}

    assert rollout / training == pytest.approx(27 / 12.5, rel=0.1)
    assert max(totals.values()) < 420
    baselines = [total for name, total in totals.items() if name != "gyre"]
    assert totals["gyre"] <= 0.77 * min(baselines)


def test_a_predicted_group_is_the_same_for_every_policy_and_its_executions_are_alike() -> None:
    predict = module("predict")
    turns = [36, 1, 5]
    for number in range(6):
        works = {
            predict.TurnsWorkload(spec=job(POLICIES, name), turns=turns).group(number, 6)
            for name in read_schedules(POLICIES)
        }
        (work,) = works
        full = turns[number % 3] * 40 / 20
        assert all(0.5 * full < seconds < 1.2 * full + 1.0 for seconds in work.durations)
        assert len(set(work.durations)) > 1
