"""The job file: what one training run is. Validated once, at the door, and frozen from then on."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
    family: Literal["qwen3"] = "qwen3"
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


class CellsSection(_Section):
    """count: K elastic cells. capacity: C_e, concurrent executions of one cell in rollout.
    Eq. (1) also knows C_s, the capacity of a pool that only serves."""

    count: Positive
    capacity: Positive
    pool_capacity: Annotated[int, Field(ge=0)] = 0


class ScheduleSection(_Section):
    """N, B, phi, mu, steps, rho_min and tau of the paper. rho_min and tau are ours: the paper's
    digest gives no value. rho_min 0.5: half a batch keeps a cell busy while the other half arrives.
    tau 60 s: several times a role switch (8.5 s + 3.5 s), short against executions of hours."""

    executions_per_group: Positive = 16
    groups_per_step: Positive = 32
    phi: Annotated[float, Field(ge=0)] = 0.5
    mu: Positive = 3
    num_steps: Positive
    rho_min: float = 0.5
    tau_s: Annotated[float, Field(ge=0)] = 60.0
    policy: Literal["gyre"] = "gyre"
    start_deadline_s: PositiveFloat = 30.0
    transition_deadline_s: PositiveFloat = 120.0

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

    @property
    def extra_groups(self) -> int:
        """phi * B, groups dispatched beyond the burst's own."""
        return round(self.phi * self.groups_per_step)


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
    evaluation over all tries; when it runs out without a score the execution is excluded."""

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
        if self.cells.count == 1 and self.cells.pool_capacity == 0 and self.schedule.phi > 0:
            raise ValueError(
                "schedule.phi: one cell without a pool switches at waterlevel 0, which phi > 0 "
                "never reaches; set phi: 0, add cells or a pool"
            )
        return self
