"""What the scheduler looks at before it takes a job: one line, the field, the mend."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gyre.contracts.events.cells import AgentOnline
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.scheduler.sizes import check_sizes
from gyre.scheduler.submission import InvalidJob, check_surroundings, parse_spec
from gyre.testkit.scheduler_world import sound_job
from gyre.testkit.specs import job_spec

CELLS = 3
AGENTS = [
    AgentOnline(cell=cell, incarnation="i", host="h", pid=cell, engines=("local", "sglang"))
    for cell in range(CELLS)
]


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    """A job that passes, its model and tasks on disk."""
    job = sound_job(tmp_path, cells=CELLS, heldout=True)
    (tmp_path / "train" / "notes.txt").write_text("no task")
    return job


def _check(raw: object) -> JobSubmitted:
    return check_surroundings(parse_spec(raw), AGENTS)


def _refused(raw: object) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        _check(raw)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{caught.value.field}: ")
    assert len(message) < 400
    return caught.value


def _changed(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    *sections, field = path.split(".")
    place = changed
    for section in sections:
        place = place.setdefault(section, {})
    if value is None:
        place.pop(field)
    else:
        place[field] = value
    return changed


def test_a_sound_job_gives_its_task_names_in_order(raw: dict[str, Any]) -> None:
    assert _check(raw) == JobSubmitted(
        spec=parse_spec(raw), train_tasks=("a", "b"), heldout_tasks=("h",)
    )


def test_a_job_without_a_heldout_set_has_no_heldout_tasks(raw: dict[str, Any]) -> None:
    found = _check(_changed(raw, "tasks.heldout", None))
    assert (found.train_tasks, found.heldout_tasks) == (("a", "b"), ())


@pytest.mark.parametrize("body", [None, [], "job", 7, [1, 2]])
def test_a_body_that_is_no_mapping_is_refused(body: object) -> None:
    assert _refused(body).field == "job"


def test_a_misspelt_field_is_named_with_its_mend(raw: dict[str, Any]) -> None:
    error = _refused(_changed(raw, "schedule.num_step", 1))
    assert str(error) == "schedule.num_step: unknown field; remove it or correct its spelling"


def test_a_missing_field_is_named_with_its_mend(raw: dict[str, Any]) -> None:
    assert str(_refused(_changed(raw, "schedule.num_steps", None))) == (
        "schedule.num_steps: is missing; set it"
    )


def test_a_long_wrong_value_is_cut_in_the_message(raw: dict[str, Any]) -> None:
    error = _refused(_changed(raw, "cells.count", {"text\n" * 2000: 1}))
    assert error.field == "cells.count"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model.path", "models/tiny", "is relative"),
        ("model.path", "/nowhere/at/all", "is no directory"),
        ("model.path", "/with\0null", "is no path"),
        ("tasks.train", "/nowhere/at/all", "is no directory"),
        ("tasks.heldout", "relative", "is relative"),
        ("harness.profile", "claude", "known: claude-code, codex, command, llm"),
        ("harness.settings", {}, "functions_path"),
        ("harness.settings.chain_limit", 0, "chain_limit"),
        ("harness.settings.functions_path", "/nowhere/tools.py", "is no file"),
        ("harness.settings.functions_path", "tools.py", "is relative"),
        ("cells.count", CELLS + 1, "3 are online"),
        ("cells.pool_capacity", 4, "a pool needs both"),
        ("model.context_tokens", 8192, "the model's limit is 4096"),
        ("rollout.max_new_tokens", 1024, "leave room for a prompt"),
        ("name", "two words", "letters, digits"),
        ("name", "n" * 80, "use at most 40"),
        ("schedule.phi", 0.3, "whole"),
        ("engine.kind", "vllm", "'local' or 'sglang'"),
        ("engine.tensor", 2, "the local engine has one rank"),
        ("engine.memory_fraction", 0.5, "of SGLang alone"),
        ("engine", {"kind": "sglang", "tensor": 2}, "cell 0 has no GPU"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    raw: dict[str, Any], path: str, value: object, words: str
) -> None:
    error = _refused(_changed(raw, path, value))
    assert words in str(error)
    assert path.startswith(error.field) or error.field.startswith(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_directory_must_be_whole(raw: dict[str, Any], name: str) -> None:
    (Path(raw["model"]["path"]) / name).unlink()
    assert f"has no {name}" in str(_refused(raw))


@pytest.mark.parametrize("text", ["{", "[]", "7", "\x00"])
def test_a_models_config_that_is_no_object_is_refused(raw: dict[str, Any], text: str) -> None:
    (Path(raw["model"]["path"]) / "config.json").write_text(text)
    assert _refused(raw).field == "model.path"


def test_a_task_set_without_tasks_is_refused(raw: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = _refused(_changed(raw, "tasks.train", str(tmp_path / "empty")))
    assert "holds no task" in str(error)


def test_the_papers_schedule_fits_into_its_events() -> None:
    spec = job_spec(executions_per_group=16, groups_per_step=32, mu=3)
    submitted = JobSubmitted(spec=spec, train_tasks=("t" * 40,), heldout_tasks=("h",) * 500)
    check_sizes("n" * 47, submitted)


@pytest.mark.parametrize(
    ("schedule", "train", "heldout", "field"),
    [
        ({"executions_per_group": 64, "groups_per_step": 128, "mu": 3}, 1, 1, "schedule"),
        ({}, 40_000, 1, "tasks"),
        ({}, 1, 8_000, "tasks.heldout"),
    ],
)
def test_a_dispatch_too_large_for_one_event_is_refused_at_the_door(
    schedule: dict[str, Any], train: int, heldout: int, field: str
) -> None:
    submitted = JobSubmitted(
        spec=job_spec(**schedule),
        train_tasks=("t000001",) * train,
        heldout_tasks=("h000001",) * heldout,
    )
    with pytest.raises(InvalidJob, match="one event holds 262144") as caught:
        check_sizes("job-1", submitted)
    assert caught.value.field == field


def test_an_engine_that_an_agent_cannot_start_is_refused_with_how_to_install_it(
    raw: dict[str, Any],
) -> None:
    spec = parse_spec(_changed(raw, "engine.kind", "sglang"))
    check_surroundings(spec, AGENTS)
    without = AGENTS[1].model_copy(update={"engines": ("local",)})
    with pytest.raises(InvalidJob) as caught:
        check_surroundings(spec, [AGENTS[0], without, AGENTS[2]])
    assert str(caught.value) == (
        "engine.kind: cell 1 has no sglang; run `gyre engines install sglang` on its machine "
        "and start its agent again"
    )


def test_sglang_needs_positions_that_it_keeps_to_itself(raw: dict[str, Any]) -> None:
    _check(_changed(raw, "model.context_tokens", 4096))
    error = _refused(_changed(_changed(raw, "model.context_tokens", 4096), "engine.kind", "sglang"))
    assert str(error) == (
        "model.context_tokens: is 4096, the model's limit is 4096 less 7 that SGLang keeps; "
        "lower it"
    )


def test_weights_go_by_nccl_where_every_cell_trains_on_gpus_and_nowhere_else(
    raw: dict[str, Any],
) -> None:
    by_nccl = parse_spec(_changed(raw, "weights.transport", "nccl"))
    on_gpus = [agent.model_copy(update={"trains_on_gpu": True}) for agent in AGENTS]
    check_surroundings(by_nccl, on_gpus)
    with pytest.raises(InvalidJob) as caught:
        check_surroundings(by_nccl, [AGENTS[1], *on_gpus[2:], on_gpus[0]])
    assert str(caught.value) == (
        "weights.transport: nccl: cell 1 trains on a CPU; use tcp or mooncake"
    )
