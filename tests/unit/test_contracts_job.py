"""The job file: each fault is refused with the field's name and the way to mend it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from gyre.contracts.job import MAX_NAME_LENGTH, JobSpec
from gyre.contracts.schedule import ScheduleSection
from gyre.contracts.subjects import calls
from gyre.core.scheduling.plans import heldout_groups, training_groups
from gyre.core.scheduling.state import JobState
from gyre.testkit.specs import job_spec

SPEC: dict[str, Any] = {
    "name": "quickstart",
    "model": {"path": "/model"},
    "harness": {"profile": "llm", "timeout_s": 60},
    "tasks": {"train": "/train", "heldout": "/heldout"},
    "cells": {"count": 3, "capacity": 8},
    "schedule": {"num_steps": 12},
}


def _with(path: str, value: object) -> dict[str, Any]:
    raw = copy.deepcopy(SPEC)
    *sections, field = path.split(".")
    place = raw
    for section in sections:
        place = place.setdefault(section, {})
    place[field] = value
    return raw


def _fault(raw: dict[str, Any]) -> tuple[str, str]:
    """(dotted field, message) of the first fault."""
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(raw)
    first = caught.value.errors(include_url=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]


def test_a_minimal_job_takes_the_papers_defaults() -> None:
    spec = JobSpec.model_validate(SPEC)
    schedule, objective = spec.schedule, spec.objective
    assert (schedule.executions_per_group, schedule.groups_per_step) == (16, 32)
    assert (schedule.phi, schedule.mu, schedule.rho_min, schedule.tau_s) == (0.5, 3, 0.5, 60.0)
    assert (objective.clip_low, objective.clip_high) == (0.995, 1.005)
    assert (objective.token_weight_cap, objective.loss_cap) == (5.0, 100.0)
    assert (spec.admission.max_trajectories, spec.optimizer.lr) == (5, 1e-6)


def test_trajectories_without_a_cap_are_said_by_null() -> None:
    spec = JobSpec.model_validate(_with("admission.max_trajectories", None))
    assert spec.admission.max_trajectories is None


@pytest.mark.parametrize(
    "path",
    [
        "surprise",
        *(f"{section}.surprise" for section, value in SPEC.items() if isinstance(value, dict)),
        "rollout.top_p",
        "objective.clip",
    ],
)
def test_an_unknown_field_is_refused_by_its_name(path: str) -> None:
    assert _fault(_with(path, 1)) == (path, "Extra inputs are not permitted")


@pytest.mark.parametrize("field", ["name", "model", "harness", "tasks", "cells", "schedule"])
def test_a_required_field_has_no_default(field: str) -> None:
    raw = {key: value for key, value in SPEC.items() if key != field}
    assert _fault(raw) == (field, "Field required")


@pytest.mark.parametrize("phi", [0.3, 1 / 64, 0.51])
def test_phi_times_b_must_be_whole_groups(phi: float) -> None:
    field, message = _fault(_with("schedule.phi", phi))
    assert field == "schedule"
    assert "phi: phi * groups_per_step is" in message
    assert "choose phi so that it is whole" in message


@pytest.mark.parametrize(
    ("phi", "groups", "extra"),
    [(0.5, 32, 16), (1 / 3, 6, 2), (0.1, 10, 1), (0, 7, 0), (2.5, 4, 10)],
)
def test_extra_groups_are_phi_b_whatever_the_rounding_of_phi(
    phi: float, groups: int, extra: int
) -> None:
    schedule = ScheduleSection(phi=phi, groups_per_step=groups, num_steps=1)
    assert schedule.extra_groups == extra


@pytest.mark.parametrize("rho_min", [0, -0.5, 1.01])
def test_rho_min_lies_above_zero_and_at_most_at_one(rho_min: float) -> None:
    field, message = _fault(_with("schedule.rho_min", rho_min))
    assert field == "schedule.rho_min"
    assert "set it in (0, 1]" in message


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.2), (0.9, 0.95), (1.2, 0.8)])
def test_clip_bounds_enclose_one(low: float, high: float) -> None:
    field, message = _fault(_with("objective", {"clip_low": low, "clip_high": high}))
    assert field == "objective"
    assert "choose clip_low <= 1 <= clip_high" in message


def test_one_cell_without_a_pool_takes_no_extra_groups() -> None:
    raw = _with("cells", {"count": 1, "capacity": 8})
    field, message = _fault(raw)
    assert field == ""
    assert "schedule.phi" in message
    assert "set phi: 0, or add cells or a pool" in message
    assert JobSpec.model_validate({**raw, "schedule": {"num_steps": 1, "phi": 0}})
    pooled = {"count": 1, "capacity": 8, "pool_count": 1, "pool_capacity": 4}
    assert JobSpec.model_validate({**raw, "cells": pooled})


@pytest.mark.parametrize("name", ["a.b", "a b", "", "a*", "a>", "ä", "a\n", "../up"])
def test_a_name_is_letters_digits_underscores_and_dashes(name: str) -> None:
    field, message = _fault(_with("name", name))
    assert field == "name"
    assert "use 1 to 80 letters, digits, '_' or '-'" in message


def test_a_long_name_is_refused_before_its_executions_ids_are_too_long() -> None:
    field, message = _fault(_with("name", "n" * (MAX_NAME_LENGTH + 1)))
    assert (field, message) == (
        "name",
        f"Value error, has {MAX_NAME_LENGTH + 1} characters; use at most {MAX_NAME_LENGTH}",
    )
    job = "n" * MAX_NAME_LENGTH + "-abc123"
    state = JobState(job=job, spec=JobSpec.model_validate(SPEC), train_tasks=("t",))
    state.heldout_tasks = ("h",)
    state.num_groups_dispatched = 9_999_999
    for plan in (*training_groups(state, 1), *heldout_groups(state)):
        assert calls(job, plan.executions[-1])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cells.count", 0),
        ("cells.capacity", -1),
        ("cells.pool_capacity", -1),
        ("schedule.num_steps", 0),
        ("schedule.mu", 0),
        ("schedule.phi", -0.5),
        ("schedule.tau_s", -1),
        ("harness.timeout_s", 0),
        ("harness.num_attempts", 0),
        ("rollout.temperature", 0),
        ("optimizer.lr", -1e-6),
        ("optimizer.beta1", 1.0),
        ("optimizer.grad_clip", 0),
        ("evaluation.max_tries", 0),
        ("admission.max_trajectories", 0),
        ("model.family", "unknown"),
        ("objective.name", "dpo"),
        ("schedule.policy", "other"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_field(path: str, value: object) -> None:
    assert _fault(_with(path, value))[0] == path


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "path", ["schedule.phi", "schedule.tau_s", "optimizer.lr", "harness.timeout_s"]
)
def test_a_number_is_finite(path: str, value: float) -> None:
    assert _fault(_with(path, value)) == (path, "Input should be a finite number")


def test_a_spec_is_frozen_and_survives_its_json() -> None:
    spec = JobSpec.model_validate(SPEC)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"heldout_every": 2}, "needs both"),
        ({"heldout_capacity": 2}, "needs both"),
        ({"heldout_every": 1, "heldout_capacity": 1000}, "slots are reserved, but"),
    ],
)
def test_measuring_while_training_needs_a_rhythm_and_room(
    evaluation: dict[str, int], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        job_spec(sections={"evaluation": evaluation})


@pytest.mark.parametrize(
    ("schedule", "left"),
    [({}, 16), ({"policy": "gyre+"}, 16), ({"policy": "async", "training_cells": 2}, 8)],
)
def test_measurements_have_the_room_that_the_fewest_training_cells_leave(
    schedule: dict[str, Any], left: int
) -> None:
    def spec(reserved: int) -> JobSpec:
        evaluation = {"heldout_every": 1, "heldout_capacity": reserved}
        return job_spec(**schedule, sections={"evaluation": evaluation})

    assert spec(left).evaluation.heldout_capacity == left
    with pytest.raises(ValidationError, match=f"but {left} are left when cells train"):
        spec(left + 1)


def test_colocated_cells_leave_measurements_the_pool_alone() -> None:
    def spec(reserved: int) -> JobSpec:
        return job_spec(
            policy="colocate",
            pool_count=2,
            pool_capacity=5,
            sections={"evaluation": {"heldout_every": 1, "heldout_capacity": reserved}},
        )

    assert spec(10).schedule.min_training_cells(3) == 3
    with pytest.raises(ValidationError, match="but 10 are left"):
        spec(11)


def test_measuring_while_training_needs_a_set() -> None:
    with pytest.raises(ValidationError, match="there is no set to measure"):
        job_spec(
            heldout=False, sections={"evaluation": {"heldout_every": 1, "heldout_capacity": 1}}
        )
