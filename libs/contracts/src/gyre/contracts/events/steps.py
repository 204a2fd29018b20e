"""What cells say of micro-steps and steps: micro_step_claimed on facts.<job>.batch.<batch>.claims,
step_completed on facts.<job>.cell.<cell>."""

from __future__ import annotations

from typing import ClassVar

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event


@event
class MicroStepClaimed(Body):
    """This cell alone trains the micro-step, while `epoch` is not fenced."""

    TYPE: ClassVar[str] = "micro_step_claimed"
    batch: str
    index: int
    cell: int
    epoch: int


class MicroStepOwner(Part):
    index: int
    cell: int
    epoch: int


# Edges of the bins in which ratios are counted: of s_i by execution and of rho_u by target. Bin k
# holds edges[k-1] <= ratio < edges[k], the first all below, the last all above. Fixed, so that
# counts of cells, of steps and of jobs add up; close together around 1, where the mask cuts.
RATIO_EDGES = (
    *(0.01, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0),
    *(1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.25, 2.0, 5.0, 10.0, 100.0),
)


class VersionMismatch(Part):
    """Trainer's against recorded log-probabilities over the step's targets that were sampled under
    one policy version; version None: where it is not known. mean_abs, max_abs: nats a target.
    mean_kl: mean of rho - 1 - log rho, an estimate of KL(behaviour || trainer).

    The number alone names the weights, whatever lineage they were served under: engines serve
    durable checkpoints, and a restore takes the newest, so that the numbers which a new lineage
    uses again are those of weights that no engine has had."""

    version: int | None
    num_targets: int
    mean_abs: float
    max_abs: float
    mean_kl: float


class CellTime(Part):
    """Of one cell in one batch, seconds. busy_s: computing; idle_s: with nothing to train, from its
    join to the end of the batch; pull_s: pulling weights."""

    cell: int
    busy_s: float
    idle_s: float
    pull_s: float = 0.0


class StepStatistics(Part):
    """Over the whole batch, all cells. loss: eq. (6). grad_norm: before clipping, of the sum.
    clip_fraction: share of executions with m_i = 0. mean_ratio: mean s_i. Both of executions that
    have targets, `num_executions` of them. entropy: nats a target. Shares of the targets:
    clipped_targets: without gradient by the mask or (grpo) the clip, weight_capped: rho_u beyond
    the weight's cap, loss_capped: l_u at the loss's cap. ratio_counts, token_ratio_counts: s_i and
    rho_u counted by RATIO_EDGES; empty in logs that are older than they are.

    num_tokens: of the micro-steps' rows. num_path_tokens: of the admitted paths written out one by
    one. num_computed_tokens: of the trees they form in a forward unit, each shared prefix once.
    num_forwarded_tokens: through the model; more than computed where a micro-step took two passes.
    """

    loss: float
    grad_norm: float
    lr: float
    clip_fraction: float
    mean_ratio: float
    mean_abs_logprob_diff: float
    max_abs_logprob_diff: float
    entropy: float
    num_targets: int
    num_tokens: int
    seconds: float
    num_executions: int = 0
    clipped_targets: float = 0.0
    weight_capped: float = 0.0
    loss_capped: float = 0.0
    ratio_counts: tuple[int, ...] = ()
    token_ratio_counts: tuple[int, ...] = ()
    mismatches: tuple[VersionMismatch, ...] = ()
    num_path_tokens: int = 0
    num_computed_tokens: int = 0
    num_forwarded_tokens: int = 0
    cell_times: tuple[CellTime, ...] = ()


# Of a step where nothing is computed, in simulated trainers: the policy stays what it was.
NO_STATISTICS = StepStatistics(
    loss=0.0,
    grad_norm=0.0,
    lr=0.0,
    clip_fraction=0.0,
    mean_ratio=1.0,
    mean_abs_logprob_diff=0.0,
    max_abs_logprob_diff=0.0,
    entropy=0.0,
    num_targets=1,
    num_tokens=1,
    seconds=0.0,
)


@event
class StepCompleted(Body):
    """One optimizer update was applied on the core. version: after it. skipped: it was not, the
    weights are unchanged but the step counts; skip_reason: why, `<class of error>: <words>`.
    record: blob with s_i and m_i of each execution (`StepRecord`)."""

    TYPE: ClassVar[str] = "step_completed"
    batch: str
    step: int
    version: int
    lineage: int
    epoch: int
    members: tuple[int, ...]
    micro_steps: tuple[MicroStepOwner, ...]
    statistics: StepStatistics
    skipped: bool = False
    skip_reason: str = ""
    record: str | None = None
