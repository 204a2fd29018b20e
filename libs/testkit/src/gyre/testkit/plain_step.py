"""A step computed again from the log alone: what the loss and the gradient of a batch are when its
recorded calls are written out path by path and a plain model reads them. Held against what trainers
report, this says that the tokens which they were given are those which they learnt from.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.contracts.job import JobSpec, ObjectiveSection
from gyre.core.microstep import NO_EDGE, Edge, TreeBlock
from gyre.core.objective import ExecutionTargets, ObjectiveSettings, batch_loss, execution_loss
from gyre.testkit.admission_oracle import ExpectedPath
from gyre.testkit.consumption_audit import ConsumedBatch, Trainee
from gyre.testkit.training import PlainPolicy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """loss: eq. (6) over the batch. grad_norm: of its gradient, all parameters."""

    loss: float
    grad_norm: float


def plain_step(batch: ConsumedBatch, spec: JobSpec, model: Path) -> PlainStep:
    """model: the weights that the step began with, as a Hugging Face directory."""
    import torch

    from gyre.cell_agent.trainer.model.weights_io import read_weights

    policy = PlainPolicy(read_weights(model), json.loads((model / "config.json").read_text()))
    settings = _settings(spec.objective)
    normalizer = spec.schedule.groups_per_step * spec.schedule.executions_per_group
    executions = []
    for trainee in batch.trainees:
        logprobs = torch.cat([_logprobs(policy, trainee, p) for p in trainee.expected.paths])
        targets = ExecutionTargets(
            advantage=trainee.advantage,
            logprobs=tuple(logprobs.tolist()),
            behaviour_logprobs=tuple(
                target.logprob for path in trainee.expected.paths for target in path.targets
            ),
        )
        slopes = torch.tensor(execution_loss(targets, settings).gradient, dtype=logprobs.dtype)
        (logprobs @ slopes / normalizer).backward()  # type: ignore[no-untyped-call]
        executions.append(targets)
    squares = (gradient.double().square().sum().item() for gradient in policy.gradients().values())
    return PlainStep(
        loss=batch_loss(executions, normalizer=normalizer, settings=settings),
        grad_norm=math.sqrt(math.fsum(squares)),
    )


def _settings(section: ObjectiveSection) -> ObjectiveSettings:
    """Not as the trainer reads them: it is the one that is judged."""
    return ObjectiveSettings(
        name=section.name,
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        token_weight_cap=section.token_weight_cap,
        loss_cap=section.loss_cap,
    )


def _logprobs(policy: PlainPolicy, trainee: Trainee, path: ExpectedPath) -> Tensor:
    flat = TreeBlock(
        execution=0,
        token_ids=path.token_ids,
        edges=(Edge(start=0, stop=len(path.token_ids), parent=NO_EDGE),),
        target_positions=tuple(target.position for target in path.targets),
        behaviour_logprobs=tuple(target.logprob for target in path.targets),
    )
    temperature = trainee.expected.temperature
    assert temperature is not None
    return policy.logprobs(flat, temperature)
