"""A job on real cells: its spec, what it trains, and what it left behind."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gyre.adapters.journal import Fact
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.contracts.job import JobSpec
from gyre.core.microstep import MicroStep
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_cells import OBJECTIVE
from gyre.testkit.training import make_executions, make_micro_step

Batches = Sequence[Sequence[MicroStep]]
"""By version: what the batch trained on it consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a job left behind."""

    facts: tuple[Fact, ...]

    def of(self, kind: type[Any]) -> list[Any]:
        """The bodies of one kind, in the log's order."""
        return [fact.body for fact in self.facts if isinstance(fact.body, kind)]

    @property
    def steps(self) -> list[step_events.StepCompleted]:
        """The steps that count, by version: a restore takes back those behind its checkpoint."""
        kept: dict[int, step_events.StepCompleted] = {}
        for step in self.of(step_events.StepCompleted):
            kept[step.version] = step
        return [kept[version] for version in sorted(kept)]

    @property
    def losses(self) -> list[float]:
        return [step.statistics.loss for step in self.steps]

    @property
    def end(self) -> sched.JobFinished:
        (end,) = self.of(sched.JobFinished)
        assert isinstance(end, sched.JobFinished)
        return end


def make_batches(
    *, num_batches: int, num_micro_steps: int, normalizer: int, seed: int = 0
) -> list[list[MicroStep]]:
    """Micro-steps of two executions each, with names of their own."""
    source = random.Random(seed)
    batches = []
    for number in range(num_batches):
        executions = [
            (replace(info, execution=f"b{number}-{info.execution}"), blocks)
            for info, blocks in make_executions(source, count=2 * num_micro_steps, vocab_size=512)
        ]
        batches.append(
            [
                make_micro_step(
                    executions[2 * index : 2 * index + 2],
                    batch="unnamed",
                    index=index,
                    normalizer=normalizer,
                )
                for index in range(num_micro_steps)
            ]
        )
    return batches


def cells_spec(
    home: Path,
    *,
    cells: int = 2,
    pool: int = 0,
    tokens_per_s: float | None = 200.0,
    layout: Mapping[str, Any] | None = None,
    publication: str = "disk",
    **schedule: Any,
) -> JobSpec:
    """One burst of steps, four groups of two executions each, on a random model below `home`.

    tokens_per_s: of the core, emulated, so that a batch lasts until satellites have joined it; they
    do the rest at once.
    layout: of each cell's ranks. publication: of weights, to engines.
    """
    model = make_tiny_model(home / "model", seed=3)
    numbers: dict[str, Any] = {
        "executions_per_group": 2,
        "groups_per_step": 4,
        "phi": 0.0,
        "mu": 3,
        "num_steps": 3,
        "rho_min": 0.25,
        "tau_s": 0.0,
    }
    elastic = {"count": cells, "capacity": 8}
    core = {"training_tokens_per_s": tokens_per_s}
    emulate = [core, *([{}] * (cells + pool - 1))] if tokens_per_s else []
    return job_spec(
        heldout=False,
        sections={
            "model": {"path": str(model), "context_tokens": 1024},
            "cells": {
                **elastic,
                **({"pool_count": pool, "pool_capacity": 8} if pool else {}),
                "emulate": emulate,
            },
            # As the plain run that it is compared with.
            "objective": {"clip_low": OBJECTIVE.clip_low, "clip_high": OBJECTIVE.clip_high},
            # Parameters whose gradient is rounding alone stay: runs that sum in another order, or
            # with another layout, are to be compared.
            "optimizer": {"lr": 1e-3, "eps": 1e-5},
            "training": {"layout": dict(layout or {})},
            "weights": {"publication": publication},
        },
        **{**numbers, **schedule},
    )
