"""The job file: what one training run is. Validated once, at the door, and frozen from then on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from gyre.contracts.alarms import AlarmsSection
from gyre.contracts.engine_job import EngineSection, WeightsSection
from gyre.contracts.families import ModelFamily
from gyre.contracts.schedule import ONE_ROLE, ScheduleSection
from gyre.contracts.section import Positive, PositiveFloat, Section
from gyre.contracts.subjects import checked_id
from gyre.contracts.training_job import OptimizerSection, TrainingSection

# The job's id and its executions' ids are made of the name, and an id has at most 80 characters.
MAX_NAME_LENGTH = 40


class ModelSection(Section):
    """path: a Hugging Face directory (config.json, model.safetensors, tokenizer.json).
    family: which renderer turns messages into tokens. context_tokens: the served context length."""

    path: str
    family: ModelFamily = "qwen3"
    context_tokens: Positive = 32_768


class HarnessSection(Section):
    """profile: the name of a harness profile. timeout_s: the execution's ceiling, SIGTERM then
    SIGKILL. settings: what the profile itself defines, checked by the profile."""

    profile: str
    timeout_s: PositiveFloat
    num_attempts: Positive = 3
    settings: dict[str, Any] = Field(default_factory=dict)


class TasksSection(Section):
    """Directories of tasks in Harbor's format. heldout may be left out: no held-out score then."""

    train: str
    heldout: str | None = None


class RolloutSection(Section):
    """The job's sampling parameters override the client's: engines report logprobs before top-p,
    so a client's top_p < 1 would make the recorded behaviour probabilities wrong."""

    temperature: PositiveFloat = 1.0
    max_new_tokens: Positive = 4096
    call_timeout_s: PositiveFloat = 240.0


class EmulationSection(Section):
    """A fixed speed below what the machine gives, so that cells which share its cores compare as
    cells with hardware of their own would. Emulation, and named so in every report.

    decode_tokens_per_s: of each running request. training_tokens_per_s: of the cell's trainer."""

    decode_tokens_per_s: PositiveFloat | None = None
    training_tokens_per_s: PositiveFloat | None = None


class CellsSection(Section):
    """count: K elastic cells; they share one training layout. capacity: C_e, concurrent executions
    of one cell in rollout; each_capacity: where they differ, one number a cell, core first.
    pool_count, pool_capacity: cells that only ever serve, and the capacity of each; together C_s.
    emulate: one entry for all cells, pool included, or one for each."""

    count: Positive
    capacity: Positive
    each_capacity: tuple[Positive, ...] = ()
    pool_count: Annotated[int, Field(ge=0)] = 0
    pool_capacity: Annotated[int, Field(ge=0)] = 0
    emulate: tuple[EmulationSection, ...] = ()

    @model_validator(mode="after")
    def _one_number_a_cell(self) -> CellsSection:
        if self.each_capacity and len(self.each_capacity) != self.count:
            raise ValueError(
                f"each_capacity: {len(self.each_capacity)} numbers for {self.count} cells; "
                "give one a cell, or leave it out"
            )
        if (self.pool_count == 0) != (self.pool_capacity == 0):
            raise ValueError(
                "pool_count, pool_capacity: a pool needs both, no pool neither; "
                f"got {self.pool_count} and {self.pool_capacity}"
            )
        if self.emulate and len(self.emulate) not in (1, self.num_cells):
            raise ValueError(
                f"emulate: {len(self.emulate)} entries for {self.num_cells} cells, pool included; "
                "give one for all or one a cell"
            )
        return self

    @property
    def num_cells(self) -> int:
        """Elastic cells and pool cells together."""
        return self.count + self.pool_count

    @property
    def capacities(self) -> tuple[int, ...]:
        """Capacity of each elastic cell, core first."""
        return self.each_capacity or (self.capacity,) * self.count

    def emulation(self, place: int) -> EmulationSection | None:
        """What cell number `place` of the job emulates: elastic cells first, then the pool's."""
        if not self.emulate:
            return None
        return self.emulate[place if len(self.emulate) > 1 else 0]


class AdmissionSection(Section):
    """max_trajectories: J_max, the most trajectories an execution may contribute; null: every leaf.
    row_tokens: longest trainable path; longer ones are dropped before admission and counted."""

    max_trajectories: Positive | None = 5
    row_tokens: Positive = 131_072
    tokens_per_micro_step: Positive = 131_072


class ObjectiveSection(Section):
    """Bounds of eq. (5)-(6): the sequence mask, the token weight's cap and the token loss's cap.

    max_mismatch: a step is not applied when the targets of one policy version differ by more than
    this between trainer and engine: mean |log pi - behaviour logprob|, nats a target. Left out
    there is no bound; the mismatch is reported all the same.
    max_skipped_steps: the job ends, failed, after so many steps in a row that were not applied, for
    a mismatch or because loss or gradient were not finite: executions are spent on nothing. null:
    it never ends for that."""

    name: Literal["gspo_token", "grpo", "reinforce"] = "gspo_token"
    clip_low: PositiveFloat = 0.995
    clip_high: PositiveFloat = 1.005
    token_weight_cap: PositiveFloat = 5.0
    loss_cap: PositiveFloat = 100.0
    advantage: Literal["mean_std", "mean"] = "mean_std"
    max_mismatch: PositiveFloat | None = None
    max_skipped_steps: Positive | None = 3

    @model_validator(mode="after")
    def _bounds_enclose_one(self) -> ObjectiveSection:
        if not self.clip_low <= 1 <= self.clip_high:
            raise ValueError("clip_low, clip_high: choose clip_low <= 1 <= clip_high")
        return self


class EvaluationSection(Section):
    """scorer_timeout_s: one run of tests/test.sh. budget_s: what an execution may spend on
    evaluation over all tries; when it runs out without a score the execution is excluded.
    heldout_every: publications from one held-out measurement to the next while the job trains;
    without it the set is measured before and after training alone.
    heldout_capacity: executions that these measurements may run at once. C_R is less by so many all
    through training, so that a measurement neither waits for training nor delays it otherwise."""

    heldout_every: Positive | None = None
    heldout_capacity: Annotated[int, Field(ge=0)] = 0
    scorer_timeout_s: PositiveFloat = 60.0
    budget_s: PositiveFloat = 300.0
    max_tries: Positive = 3


class JobSpec(Section):
    """One training run. Paths are absolute once the scheduler has accepted it."""

    name: str
    seed: int = 0
    model: ModelSection
    harness: HarnessSection
    tasks: TasksSection
    rollout: RolloutSection = RolloutSection()
    cells: CellsSection
    schedule: ScheduleSection
    admission: AdmissionSection = AdmissionSection()
    objective: ObjectiveSection = ObjectiveSection()
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection = TrainingSection()
    engine: EngineSection = EngineSection()
    weights: WeightsSection = WeightsSection()
    evaluation: EvaluationSection = EvaluationSection()
    alarms: AlarmsSection = AlarmsSection()

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, value: str) -> str:
        if len(value) > MAX_NAME_LENGTH:
            raise ValueError(f"has {len(value)} characters; use at most {MAX_NAME_LENGTH}")
        return checked_id(value)

    @model_validator(mode="after")
    def _speeds_can_be_emulated(self) -> JobSpec:
        slowed = any(entry.decode_tokens_per_s is not None for entry in self.cells.emulate)
        if slowed and self.engine.kind != "local":
            raise ValueError(
                "cells.emulate: decode_tokens_per_s slows the local engine alone; "
                "leave it out, or set engine.kind: local"
            )
        return self

    @model_validator(mode="after")
    def _core_can_always_join(self) -> JobSpec:
        # With no pool and one cell the transition waits for w = 0, which phi > 0 never allows:
        # the extra phi*B groups can only run on the cell that waits to train.
        together = self.cells.count == 1 or self.schedule.policy in ONE_ROLE
        if together and self.cells.pool_count == 0 and self.schedule.phi > 0:
            raise ValueError(
                "schedule.phi: cells that train all together and no pool switch at waterlevel 0, "
                "which phi > 0 never reaches; set phi: 0, or add cells or a pool"
            )
        return self

    @model_validator(mode="after")
    def _measurements_have_room(self) -> JobSpec:
        reserved, cells = self.evaluation.heldout_capacity, self.cells
        if (self.evaluation.heldout_every is None) != (reserved == 0):
            raise ValueError(
                "evaluation.heldout_every, heldout_capacity: measuring while training needs both"
            )
        if reserved and self.tasks.heldout is None:
            raise ValueError(
                "evaluation.heldout_every: there is no set to measure; set tasks.heldout"
            )
        staying = cells.capacities[self.schedule.min_training_cells(cells.count) :]
        left = sum(staying) + cells.pool_count * cells.pool_capacity
        if reserved > left:
            raise ValueError(
                f"evaluation.heldout_capacity: {reserved} slots are reserved, but {left} are left "
                "when cells train; lower it, or add cells or a pool"
            )
        return self

    @model_validator(mode="after")
    def _somebody_serves(self) -> JobSpec:
        fixed = self.schedule.training_cells
        if fixed is None:
            return self
        if fixed > self.cells.count or fixed == self.cells.num_cells:
            raise ValueError(
                f"schedule.training_cells: {fixed} of {self.cells.count} elastic and "
                f"{self.cells.pool_count} pool cells; leave at least one to serve"
            )
        return self
