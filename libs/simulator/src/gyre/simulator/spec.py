"""SPEC.yaml of `gyre simulate`: a schedule as in a job file, cells by nodes, a workload, speeds.

Validated once; `jobs()` makes of it what a `Simulation` takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gyre.contracts.job import JobSpec
from gyre.contracts.schedule import FIXED_SPLIT, PolicyName
from gyre.simulator.speeds import Speeds
from gyre.simulator.workload import Drawn, Lognormal, Training

Model = TypeVar("Model", bound=BaseModel)

NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

# Deadlines catch what fails, and here nothing does: a publication of minutes is not a lost core.
_NO_DEADLINES = dict.fromkeys(
    ("start_deadline_s", "transition_deadline_s", "boot_deadline_s", "silence_deadline_s"), 1e12
)
# How much of a wrong value a message repeats.
_SHOWN = 60


class SpecError(ValueError):
    """The message is one line: the field, what is wrong, how to mend it."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NodesSection(_Section):
    """nodes: of each elastic cell, core first. pool_nodes: nodes that only ever serve.
    executions_per_node: what one node holds in rollout."""

    nodes: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    pool_nodes: NonNegative = 0
    executions_per_node: PositiveFloat = 36

    @property
    def total(self) -> float:
        return sum(self.nodes) + self.pool_nodes

    def capacity(self, nodes: float) -> int:
        return max(1, round(nodes * self.executions_per_node))


class WorkloadSection(_Section):
    """Lengths of executions in hours (`workload.Lognormal`). num_tasks: size of the task set, whose
    tasks come in turn and keep their group factor; without it no task comes twice."""

    median_h: PositiveFloat
    group_sigma: NonNegative = 0.0
    individual_sigma: NonNegative = 0.0
    timeout_h: PositiveFloat | None = None
    overall_after_timeout: Share = 0.0
    overall_share: Share = 0.0
    overall_timeout_h: PositiveFloat | None = None
    num_tasks: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _ceilings_are_given(self) -> WorkloadSection:
        if self.overall_after_timeout > 0 and self.timeout_h is None:
            raise ValueError("overall_after_timeout: set timeout_h too, which it is a share of")
        overall = self.overall_after_timeout > 0 or self.overall_share > 0
        if overall and self.overall_timeout_h is None:
            raise ValueError("overall_timeout_h: set it, it is how long an overall time-out takes")
        return self

    def lengths(self) -> Lognormal:
        given = self.model_dump(exclude_none=True, exclude={"num_tasks"})
        return Lognormal(**given)


class TrainingSection(_Section):
    """node_hours_per_step: of B groups' work, at the speed of a cell of reference_nodes, which by
    default is the core. micro_steps_per_group: what a group's work is cut into. length_share: of
    the work, how much follows the executions' length, against reference_execution_h."""

    node_hours_per_step: PositiveFloat
    micro_steps_per_group: Annotated[int, Field(gt=0)] = 1
    node_exponent: PositiveFloat = 1.0
    reference_nodes: PositiveFloat | None = None
    length_share: Share = 0.0
    reference_execution_h: PositiveFloat = 1.0

    def work(self, groups_per_step: int) -> Training:
        return Training(
            node_hours=self.node_hours_per_step,
            groups_per_step=groups_per_step,
            num_micro_steps=self.micro_steps_per_group,
            length_share=self.length_share,
            reference_execution_h=self.reference_execution_h,
        )


class SpeedsSection(_Section):
    """Seconds (`speeds.Speeds`)."""

    start_s: NonNegative = 0.0
    scoring_s: NonNegative = 0.0
    ready_s: NonNegative = 0.0
    to_training_s: NonNegative = 8.52
    to_rollout_s: NonNegative = 3.46
    pull_s: NonNegative = 0.0
    join_s: NonNegative = 0.0
    update_s: NonNegative = 0.0
    publish_s: NonNegative = 0.0


class SimulationSpec(_Section):
    """schedule: as in a job file. policies: what a policy changes in it, so that baselines compare
    at the same mean staleness. trace: an exported run whose executions and speeds stand in for
    workload, training and speeds; one of its cells is one node. until_step: measure the first steps
    of a longer job."""

    schedule: dict[str, Any]
    policies: dict[PolicyName, dict[str, Any]] = Field(default_factory=dict)
    cells: NodesSection
    workload: WorkloadSection | None = None
    training: TrainingSection | None = None
    trace: str | None = None
    speeds: SpeedsSection = SpeedsSection()
    until_step: Annotated[int, Field(gt=0)] | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _work_comes_from_somewhere(self) -> SimulationSpec:
        given = {"workload", "training", "speeds"} & self.model_fields_set
        if self.trace is not None and given:
            raise ValueError(f"trace: it stands in for {', '.join(sorted(given))}; leave them out")
        if self.trace is None and (self.workload is None or self.training is None):
            raise ValueError("workload, training: set both, or name a recorded run with trace")
        return self

    def job(self, policy: PolicyName | None = None, speeds: Speeds | None = None) -> Prepared:
        """The job under `policy`, the schedule's own by default; `speeds` of a recorded run where
        the file names one. Raises SpecError."""
        spec = job_spec(self._schedule(policy), self.cells)
        if self.until_step is not None and self.until_step > spec.schedule.num_steps:
            raise SpecError(
                f"until_step: is {self.until_step}, more than schedule.num_steps "
                f"{spec.schedule.num_steps}; lower it"
            )
        pool = (self.cells.pool_nodes,) if self.cells.pool_nodes else ()
        return Prepared(
            spec=spec,
            nodes=(*self.cells.nodes, *pool),
            speeds=speeds or self._given_speeds(),
            until_step=self.until_step,
        )

    def drawn(self, spec: JobSpec, seed: int) -> Drawn:
        """The file's distribution. Raises SpecError where it names a recorded run instead."""
        if self.workload is None or self.training is None:
            raise SpecError("workload, training: are missing")
        return Drawn(
            lengths=self.workload.lengths(),
            training=self.training.work(spec.schedule.groups_per_step),
            seed=seed,
            num_tasks=self.workload.num_tasks,
        )

    def _given_speeds(self) -> Speeds:
        training = self.training
        return Speeds(
            node_exponent=training.node_exponent if training else 1.0,
            reference_nodes=(training.reference_nodes if training else None) or self.cells.nodes[0],
            **self.speeds.model_dump(),
        )

    def _schedule(self, policy: PolicyName | None) -> dict[str, Any]:
        """`training_cells` belongs to a fixed split alone: it may stand in the file for when that
        runs."""
        chosen = policy or self.schedule.get("policy", "gyre")
        merged = {**self.schedule, "policy": chosen, **self.policies.get(chosen, {})}
        if chosen not in FIXED_SPLIT:
            merged.pop("training_cells", None)
        return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a `Simulation` takes besides a workload."""

    spec: JobSpec
    nodes: tuple[float, ...]
    speeds: Speeds
    until_step: int | None


def job_spec(schedule: dict[str, Any], cells: NodesSection) -> JobSpec:
    """A job that is only scheduled: its model, harness and tasks are never looked at. The deadlines
    of `schedule` are left out."""
    pool = cells.capacity(cells.pool_nodes) if cells.pool_nodes else 0
    raw = {
        "name": "simulated",
        "model": {"path": "/"},
        "harness": {"profile": "simulated", "timeout_s": 1},
        "tasks": {"train": "/"},
        "cells": {
            "count": len(cells.nodes),
            "capacity": cells.capacity(cells.nodes[0]),
            "each_capacity": [cells.capacity(nodes) for nodes in cells.nodes],
            "pool_count": 1 if pool else 0,
            "pool_capacity": pool,
        },
        "schedule": {**schedule, **_NO_DEADLINES},
    }
    return checked(JobSpec, raw)


def without_deadlines(spec: JobSpec) -> JobSpec:
    """The job with deadlines that never pass."""
    schedule = spec.schedule.model_copy(update=_NO_DEADLINES)
    return spec.model_copy(update={"schedule": schedule})


def parse(raw: object) -> SimulationSpec:
    """The validated spec. Raises SpecError for the first fault, those of the schedule included."""
    spec = checked(SimulationSpec, raw)
    spec.job()
    return spec


def checked(model: type[Model], raw: object) -> Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"]) or "file"
        raise SpecError(f"{field}: {_problem(fault)}") from error


def _problem(fault: Any) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return "unknown field; remove it or correct its spelling"
        case "missing":
            return "is missing; set it"
        case "value_error":
            return str(fault["ctx"]["error"])
        case _:
            return f"{fault['msg']}, got {repr(fault['input'])[:_SHOWN]}"
