"""The job file: what one training run is. Validated once, at the door, and frozen from then on."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gyre.contracts.families import ModelFamily
from gyre.contracts.subjects import checked_id

# The job's id and its executions' ids are made of the name, and an id has at most 80 characters.
MAX_NAME_LENGTH = 40


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class ModelSection(_Section):
    """path: a Hugging Face directory (config.json, model.safetensors, tokenizer.json).
    family: which renderer turns messages into tokens. context_tokens: the served context length."""

    path: str
    family: ModelFamily = "qwen3"
    context_tokens: Positive = 32_768


class HarnessSection(_Section):
    """profile: the name of a harness profile. timeout_s: the execution's ceiling, SIGTERM then
    SIGKILL. settings: what the profile itself defines, checked by the profile."""

    profile: str
    timeout_s: PositiveFloat
    num_attempts: Positive = 3
    settings: dict[str, Any] = Field(default_factory=dict)


class TasksSection(_Section):
    """Directories of tasks in Harbor's format. heldout may be left out: no held-out score then."""

    train: str
    heldout: str | None = None


class RolloutSection(_Section):
    """The job's sampling parameters override the client's: engines report logprobs before top-p,
    so a client's top_p < 1 would make the recorded behaviour probabilities wrong."""

    temperature: PositiveFloat = 1.0
    max_new_tokens: Positive = 4096
    call_timeout_s: PositiveFloat = 240.0


class EmulationSection(_Section):
    """A fixed speed below what the machine gives, so that cells which share its cores compare as
    cells with hardware of their own would. Emulation, and named so in every report.

    decode_tokens_per_s: of each running request. training_tokens_per_s: of the cell's trainer."""

    decode_tokens_per_s: PositiveFloat | None = None
    training_tokens_per_s: PositiveFloat | None = None


class CellsSection(_Section):
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


PolicyName = Literal["gyre", "gyre+", "async", "colocate"]


class ScheduleSection(_Section):
    """N, B, phi, mu, steps, rho_min and tau of the paper. rho_min and tau are ours: the paper's
    digest gives no value. rho_min 0.5: half a batch keeps a cell busy while the other half arrives.
    tau 60 s: several times a role switch (8.5 s + 3.5 s), short against executions of hours.

    policy: who trains when (`gyre.core.scheduling.policies`). streaming: a step begins with the
    groups that are ready; without it a burst waits for all its mu B groups.
    training_cells: how many cells, core first, policy `async` gives to training for good.
    executions_started: N' >= N, sampled for each group; the N that `keep` names are trained.
    keep: first_finished cancels what is left of a group once N of it are done, which favours short
    executions; drawn lets all N' end and draws N of them.
    max_staleness: bound on v_t - v_d of every group. on_stale: a step that would pass it waits for
    the group, or the group is dropped, its executions cancelled and counted by their length.
    silence_deadline_s: how long an agent may be silent before its cell counts as lost."""

    executions_per_group: Positive = 16
    groups_per_step: Positive = 32
    phi: Annotated[float, Field(ge=0)] = 0.5
    mu: Positive = 3
    num_steps: Positive
    rho_min: float = 0.5
    tau_s: Annotated[float, Field(ge=0)] = 60.0
    policy: PolicyName = "gyre"
    streaming: bool = True
    training_cells: Positive | None = None
    executions_started: Positive | None = None
    keep: Literal["first_finished", "drawn"] = "first_finished"
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    on_stale: Literal["wait", "drop"] = "wait"
    start_deadline_s: PositiveFloat = 30.0
    transition_deadline_s: PositiveFloat = 120.0
    boot_deadline_s: PositiveFloat = 900.0
    silence_deadline_s: PositiveFloat = 60.0

    @field_validator("rho_min")
    @classmethod
    def _rho_min_in_range(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(
                f"is {value}: set it in (0, 1], the share of B groups that must be ready"
            )
        return value

    @model_validator(mode="after")
    def _extra_dispatch_is_whole(self) -> ScheduleSection:
        extra = Fraction(self.phi).limit_denominator(10_000) * self.groups_per_step
        if extra.denominator != 1:
            raise ValueError(
                f"phi: phi * groups_per_step is {float(extra):g} groups; "
                "choose phi so that it is whole"
            )
        return self

    @model_validator(mode="after")
    def _policy_has_what_it_needs(self) -> ScheduleSection:
        if (self.training_cells is None) == (self.policy == "async"):
            raise ValueError(
                "training_cells: set it for policy async, which gives that many cells to training "
                "for good, and for no other"
            )
        return self

    @model_validator(mode="after")
    def _starts_at_least_what_it_keeps(self) -> ScheduleSection:
        if self.group_size < self.executions_per_group:
            raise ValueError(
                f"executions_started: is {self.executions_started}, below executions_per_group "
                f"{self.executions_per_group}; start at least as many as are trained"
            )
        return self

    @model_validator(mode="after")
    def _bound_is_above_the_mean(self) -> ScheduleSection:
        # A group dispatched at a publication waits phi B groups long and up to mu - 1 steps.
        least = math.ceil(self.phi) + self.mu - 1
        if self.max_staleness is not None and self.max_staleness < least:
            raise ValueError(
                f"max_staleness: is {self.max_staleness}, but phi {self.phi:g} and mu {self.mu} "
                f"make groups up to {least} steps old by design; raise it, or lower phi or mu"
            )
        return self

    @property
    def extra_groups(self) -> int:
        """phi * B, groups dispatched beyond the burst's own."""
        return round(self.phi * self.groups_per_step)

    @property
    def group_size(self) -> int:
        """Executions dispatched for each group: N', or N without oversampling."""
        return self.executions_started or self.executions_per_group

    def min_training_cells(self, num_elastic: int) -> int:
        """How many of `num_elastic` cells, core first, are out of rollout whenever a step is
        computed: all where they change role as one, the fixed split's, else the core."""
        if self.policy == "colocate":
            return num_elastic
        return self.training_cells or 1


class AdmissionSection(_Section):
    """max_trajectories: J_max, the most trajectories one execution may contribute.
    row_tokens: longest trainable path; longer ones are dropped before admission and counted."""

    max_trajectories: Positive = 5
    row_tokens: Positive = 131_072
    tokens_per_micro_step: Positive = 131_072


class ObjectiveSection(_Section):
    """Bounds of eq. (5)-(6): the sequence mask, the token weight's cap and the token loss's cap."""

    name: Literal["gspo_token", "grpo", "reinforce"] = "gspo_token"
    clip_low: PositiveFloat = 0.995
    clip_high: PositiveFloat = 1.005
    token_weight_cap: PositiveFloat = 5.0
    loss_cap: PositiveFloat = 100.0
    advantage: Literal["mean_std", "mean"] = "mean_std"

    @model_validator(mode="after")
    def _bounds_enclose_one(self) -> ObjectiveSection:
        if not self.clip_low <= 1 <= self.clip_high:
            raise ValueError("clip_low, clip_high: choose clip_low <= 1 <= clip_high")
        return self


class OptimizerSection(_Section):
    """Adam with a constant learning rate after `warmup_steps` of linear rise."""

    lr: Annotated[float, Field(ge=0)] = 1e-6
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    grad_clip: PositiveFloat = 1.0


class EvaluationSection(_Section):
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


class JobSpec(_Section):
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
    evaluation: EvaluationSection = EvaluationSection()

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, value: str) -> str:
        if len(value) > MAX_NAME_LENGTH:
            raise ValueError(f"has {len(value)} characters; use at most {MAX_NAME_LENGTH}")
        return checked_id(value)

    @model_validator(mode="after")
    def _core_can_always_join(self) -> JobSpec:
        # With no pool and one cell the transition waits for w = 0, which phi > 0 never allows:
        # the extra phi*B groups can only run on the cell that waits to train.
        together = self.cells.count == 1 or self.schedule.policy == "colocate"
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
