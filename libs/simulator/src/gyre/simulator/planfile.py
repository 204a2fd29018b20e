"""The `plan` section that `gyre plan` reads beside a job file's `schedule`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gyre.contracts.job import JobSpec
from gyre.contracts.schedule import ScheduleSection
from gyre.simulator.spec import (
    Model,
    SpecError,
    SpeedsSection,
    TrainingSection,
    WorkloadSection,
    checked,
)
from gyre.simulator.speeds import Speeds
from gyre.simulator.workload import Drawn


class PlanSection(BaseModel):
    """nodes: the budget. min_nodes_per_cell: what one cell needs for the model's memory and its
    training layout. staleness: the mean wanted, optimizer steps. shuffle: global when the training
    procedure assigns groups to the updates of a burst at random. workload, training, speeds: as in
    `gyre simulate`'s file; a recorded run may stand in for all three."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    nodes: Annotated[float, Field(gt=0)]
    min_nodes_per_cell: Annotated[float, Field(gt=0)] = 1
    executions_per_node: Annotated[float, Field(gt=0)]
    staleness: Annotated[float, Field(ge=0)]
    shuffle: Literal["none", "global"] = "none"
    workload: WorkloadSection | None = None
    training: TrainingSection | None = None
    speeds: SpeedsSection = SpeedsSection()
    seed: int = 0

    @property
    def given_speeds(self) -> Speeds:
        """Raises SpecError without a training section."""
        training = self.required_training
        return Speeds(
            node_exponent=training.node_exponent,
            reference_nodes=training.reference_nodes or self.min_nodes_per_cell,
            **self.speeds.model_dump(),
        )

    @property
    def required_training(self) -> TrainingSection:
        if self.training is None:
            raise SpecError("plan.training: is missing; set it, or give a recorded run")
        return self.training

    def given_workload(self) -> Callable[[JobSpec, int], Drawn]:
        """Makes a job's workload under a seed. Raises SpecError without a workload section."""
        if self.workload is None:
            raise SpecError("plan.workload: is missing; set it, or give a recorded run")
        lengths, training = self.workload.lengths(), self.required_training
        num_tasks = self.workload.num_tasks

        def drawn(spec: JobSpec, seed: int) -> Drawn:
            work = training.work(spec.schedule.groups_per_step)
            return Drawn(lengths=lengths, training=work, seed=seed, num_tasks=num_tasks)

        return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    section: PlanSection
    schedule: ScheduleSection


def parse_plan(raw: dict[str, Any]) -> PlanFile:
    """A job file with a `plan` section, of which nothing but the schedule is looked at besides.
    Raises SpecError."""
    for name in ("plan", "schedule"):
        if not isinstance(raw.get(name), dict):
            raise SpecError(f"{name}: is missing; `gyre plan` needs a job file with this section")
    return PlanFile(
        section=_named("plan", PlanSection, raw["plan"]),
        schedule=_named("schedule", ScheduleSection, raw["schedule"]),
    )


def _named(section: str, model: type[Model], raw: object) -> Model:
    try:
        return checked(model, raw)
    except SpecError as error:
        raise SpecError(f"{section}.{error}") from error
