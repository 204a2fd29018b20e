"""The job file's schedule: who trains when, how much is dispatched, how long anything may take."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gyre.contracts.section import Positive, PositiveFloat, Section

PolicyName = Literal["gyre", "gyre+", "async", "colocate"]

# What a job file is checked for, by policy; what each of them does is in `gyre.core`.
# Those that give `training_cells` cells to training for good.
FIXED_SPLIT: tuple[PolicyName, ...] = ("async",)
# Those under which all elastic cells change role as one.
ONE_ROLE: tuple[PolicyName, ...] = ("colocate",)


class ScheduleSection(Section):
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
        if (self.training_cells is None) == (self.policy in FIXED_SPLIT):
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
        if self.policy in ONE_ROLE:
            return num_elastic
        return self.training_cells or 1
