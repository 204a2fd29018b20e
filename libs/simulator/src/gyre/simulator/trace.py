"""A recorded run as a workload: its own executions and its own speeds, for another schedule.

Folded from the run's facts with their times. What is taken from the log:

- each execution's length, started to terminated, by group and place; a job that needs more groups
  than were recorded takes them from the beginning again;
- each group's training work: its share of the tokens of the micro-steps that hold its executions,
  at the time a token took;
- means of all delays: order to start, end to score, last score to readiness, role switches,
  publication, joining, the update after the last micro-step.

Lengths are taken to be independent of load: a schedule that runs more executions on one engine at a
time than the recorded one did is predicted too fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from gyre.contracts.job import JobSpec
from gyre.simulator.speeds import Speeds
from gyre.simulator.trace_fold import RecordedMicroStep, TraceError, TraceFold
from gyre.simulator.workload import Ending, GroupWork

# A micro-step whose successor lay in the queue this long before it was claimed filled its cell's
# time; one that came later may have been waited for.
_QUEUED_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A workload. step_s: when the recorded run's steps were applied, from the start of its
    training phase. groups: as recorded, whole ones only."""

    spec: JobSpec
    groups: tuple[GroupWork, ...]
    speeds: Speeds
    step_s: tuple[float, ...]
    num_tasks: int | None

    def group(self, number: int, size: int) -> GroupWork:
        recorded = self.groups[number % len(self.groups)]
        places = [place % len(recorded.durations) for place in range(size)]
        return GroupWork(
            durations=tuple(recorded.durations[place] for place in places),
            endings=tuple(recorded.endings[place] for place in places),
            micro_steps=recorded.micro_steps,
        )


def trace(fold: TraceFold) -> Trace:
    """Raises TraceError for a run that has applied no step."""
    if fold.spec is None:
        raise TraceError("no job_submitted in it")
    if not fold.steps or fold.training_since is None:
        raise TraceError("it has applied no step yet")
    token_s = _token_s(fold)
    tokens = _tokens_by_group(fold)
    num = sum(len(steps) for steps in fold.micro_steps.values())
    per_group = max(1, round(num / max(1, len(tokens))))
    mean_tokens = fmean(tokens.values()) if tokens else 0.0
    groups = [
        work
        for name in fold.groups
        if (work := _group(fold, name, tokens.get(name, mean_tokens) * token_s, per_group))
    ]
    if not groups:
        raise TraceError("no group of it ended whole")
    since = fold.training_since
    return Trace(
        spec=fold.spec,
        groups=tuple(groups),
        speeds=_speeds(fold, token_s),
        step_s=tuple(time - since for time in fold.steps),
        num_tasks=fold.num_tasks,
    )


def _group(fold: TraceFold, name: str, node_s: float, per_group: int) -> GroupWork | None:
    """None for a group that was not run to its end."""
    durations: list[float] = []
    endings: list[Ending] = []
    for execution in (fold.executions[e] for e in fold.groups[name]):
        if execution.started is None or execution.ended is None:
            return None
        durations.append(max(0.0, execution.ended - execution.started))
        endings.append(execution.ending)
    return GroupWork(
        durations=tuple(durations),
        endings=tuple(endings),
        micro_steps=(node_s / per_group,) * per_group,
    )


def _token_s(fold: TraceFold) -> float:
    """Seconds a token takes a cell: over the micro-steps whose cell had the next one waiting."""
    seconds, tokens = 0.0, 0
    for batch in fold.micro_steps.values():
        for step, after in _successions(batch):
            if step.claimed is None or after.claimed is None:
                continue
            if after.emitted < after.claimed - _QUEUED_S:
                seconds += after.claimed - step.claimed
                tokens += step.num_tokens
    if tokens == 0:
        closed = fold.delays.get("closed_to_step_s", [0.0])
        sizes = [step.num_tokens for b in fold.micro_steps.values() for step in b.values()]
        return median(closed) / max(1.0, median(sizes)) if sizes else 0.0
    return seconds / tokens


def _successions(
    batch: dict[int, RecordedMicroStep],
) -> list[tuple[RecordedMicroStep, RecordedMicroStep]]:
    """Each micro-step with the next one of the same cell."""
    claimed = sorted(
        (step for step in batch.values() if step.claimed is not None),
        key=lambda step: (step.cell or 0, step.claimed or 0.0),
    )
    return [(one, two) for one, two in pairwise(claimed) if one.cell == two.cell]


def _tokens_by_group(fold: TraceFold) -> dict[str, float]:
    """A micro-step's tokens, shared alike by its executions."""
    tokens: dict[str, float] = {}
    for batch in fold.micro_steps.values():
        for step in batch.values():
            for name in step.executions:
                group = fold.executions[name].group
                tokens[group] = tokens.get(group, 0.0) + step.num_tokens / len(step.executions)
    return tokens


def _speeds(fold: TraceFold, token_s: float) -> Speeds:
    executions = list(fold.executions.values())
    starts = [e.started - e.ordered for e in executions if e.started and e.ordered]
    scores = [e.scored - e.ended for e in executions if e.scored and e.ended]
    mean = {name: fmean(values) for name, values in fold.delays.items()}
    return Speeds(
        start_s=max(0.0, fmean(starts)) if starts else 0.0,
        scoring_s=max(0.0, fmean(scores)) if scores else 0.0,
        ready_s=mean.get("ready_s", 0.0),
        to_training_s=mean.get("to_training_s", 0.0),
        to_rollout_s=mean.get("to_rollout_s", 0.0),
        pull_s=mean.get("pull_s", 0.0),
        join_s=mean.get("join_s", 0.0),
        update_s=max(0.0, mean.get("closed_to_step_s", 0.0) - _last_micro_step_s(fold, token_s)),
        publish_s=mean.get("publish_s", 0.0),
    )


def _last_micro_step_s(fold: TraceFold, token_s: float) -> float:
    """How long a batch's last claimed micro-step takes, on average: the window closes at its claim,
    and it is done before the update."""
    last = [
        max(claimed, key=lambda step: step.claimed or 0.0).num_tokens
        for batch in fold.micro_steps.values()
        if (claimed := [step for step in batch.values() if step.claimed is not None])
    ]
    return token_s * fmean(last) if last else 0.0
