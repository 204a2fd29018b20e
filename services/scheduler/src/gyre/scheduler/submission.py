"""What is checked before a job is accepted: each fault is one line that names field and mend."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from gyre.contracts.engine_job import SGLANG_RESERVED_TOKENS
from gyre.contracts.events.cells import AgentOnline
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.contracts.job import JobSpec
from gyre.core.agent_fit import agent_misfit
from gyre.core.harness import UnknownHarness, harness_profile
from gyre.core.layout_fit import LayoutMisfit, check_fit
from gyre.core.policy_config import PolicyConfig, UnknownModel, policy_config

# How much of a wrong value a message repeats.
_SHOWN = 60


class InvalidJob(ValueError):
    """A job that cannot run. field: dotted path in the job file."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def parse_spec(raw: object) -> JobSpec:
    """The validated spec. Raises InvalidJob for the first fault."""
    try:
        return JobSpec.model_validate(raw)
    except ValidationError as error:
        raise _first_fault(error) from error


def _first_fault(error: ValidationError) -> InvalidJob:
    fault = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in fault["loc"]) or "job"
    match fault["type"]:
        case "extra_forbidden":
            return InvalidJob(field, "unknown field; remove it or correct its spelling")
        case "missing":
            return InvalidJob(field, "is missing; set it")
        case "value_error":
            return InvalidJob(field, str(fault["ctx"]["error"]))
        case _:
            return InvalidJob(field, f"{fault['msg']}, got {repr(fault['input'])[:_SHOWN]}")


def check_surroundings(spec: JobSpec, agents: Collection[AgentOnline]) -> JobSubmitted:
    """Look at what the spec names; returns what is to be known of it, the task names sorted.
    agents: those of the cells that are online, any of which may get the job.

    Raises InvalidJob for a path that is not there, a model that cannot be trained or not in that
    layout, a harness nobody knows, too few cells, and a cell that cannot run the job.
    """
    model = _directory("model.path", spec.model.path)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (model / name).is_file():
            raise InvalidJob("model.path", f"{model} has no {name}; give a Hugging Face directory")
    policy = _check_model(spec, model)
    _check_harness(spec)
    if len(agents) < spec.cells.num_cells:
        raise InvalidJob(
            "cells.count",
            f"{spec.cells.num_cells} cells wanted, {len(agents)} are online; "
            "lower it or start more cell agents",
        )
    experts = policy.experts is not None
    _check_cells(spec, experts, agents)
    heldout = spec.tasks.heldout
    return JobSubmitted(
        spec=spec,
        train_tasks=_tasks("tasks.train", spec.tasks.train),
        heldout_tasks=_tasks("tasks.heldout", heldout) if heldout else (),
        experts=experts,
    )


def _check_cells(spec: JobSpec, experts: bool, agents: Collection[AgentOnline]) -> None:
    if experts and spec.engine.kind == "local":
        raise InvalidJob(
            "engine.kind", "is local, which serves no model of experts; set it to sglang"
        )
    for agent in sorted(agents, key=lambda one: one.cell):
        misfit = agent_misfit(spec, agent, experts=experts)
        if misfit is not None:
            raise InvalidJob(misfit.field, misfit.message)


def _check_harness(spec: JobSpec) -> None:
    """By convention a setting whose name ends with `_path` names a file that must be there."""
    try:
        harness_profile(spec.harness.profile).check(spec.harness.settings)
    except UnknownHarness as error:
        raise InvalidJob("harness.profile", str(error)) from error
    except ValueError as error:
        raise InvalidJob("harness.settings", str(error)) from error
    for name, value in spec.harness.settings.items():
        if name.endswith("_path"):
            field = f"harness.settings.{name}"
            if not _absolute(field, str(value)).is_file():
                raise InvalidJob(field, f"{value} is no file; correct the path")


def _check_model(spec: JobSpec, model: Path) -> PolicyConfig:
    try:
        policy = policy_config(json.loads((model / "config.json").read_text(encoding="utf-8")))
    except UnknownModel as error:
        raise InvalidJob("model.path", f"{model}/config.json: {error}") from error
    except (OSError, ValueError) as error:
        raise InvalidJob("model.path", f"{model}/config.json is not readable: {error}") from error
    try:
        check_fit(policy, spec.training.layout)
    except LayoutMisfit as error:
        raise InvalidJob(f"training.layout.{error.setting}", str(error)) from error
    _check_context(spec, policy.max_positions)
    return policy


def _check_context(spec: JobSpec, longest: int) -> None:
    """longest: the model's limit, tokens."""
    reserved = SGLANG_RESERVED_TOKENS if spec.engine.kind == "sglang" else 0
    if spec.model.context_tokens > longest - reserved:
        kept = f" less {reserved} that SGLang keeps" if reserved else ""
        raise InvalidJob(
            "model.context_tokens",
            f"is {spec.model.context_tokens}, the model's limit is {longest}{kept}; lower it",
        )
    if spec.rollout.max_new_tokens >= spec.model.context_tokens:
        raise InvalidJob(
            "rollout.max_new_tokens",
            f"is {spec.rollout.max_new_tokens}, leave room for a prompt: "
            f"set it below model.context_tokens ({spec.model.context_tokens})",
        )


def _absolute(field: str, path: str) -> Path:
    if not path.isprintable():
        raise InvalidJob(field, f"{path!r} is no path; correct it")
    if not Path(path).is_absolute():
        raise InvalidJob(field, f"{path!r} is relative; give an absolute path")
    return Path(path)


def _directory(field: str, path: str) -> Path:
    directory = _absolute(field, path)
    if not directory.is_dir():
        raise InvalidJob(field, f"{path} is no directory; correct the path")
    return directory


def _tasks(field: str, path: str) -> tuple[str, ...]:
    root = _directory(field, path)
    try:
        names = sorted(entry.name for entry in root.iterdir() if (entry / "task.toml").is_file())
    except OSError as error:
        raise InvalidJob(field, f"{root} cannot be read: {error.strerror}") from error
    if not names:
        raise InvalidJob(field, f"{root} holds no task; a task is a directory with a task.toml")
    return tuple(names)
