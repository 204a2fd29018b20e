"""Each group's staleness and where its time went, and the mean against the identity.

A group's life from dispatch to claim has four parts, and their sum is the whole:

    dispatched --queued--> its slowest execution started --running--> the slowest terminated
               --scoring--> group ready --ready--> claimed

The slowest execution is the one that ended last of those that ended before the group was ready: the
others' times hide behind its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gyre.core.explain.journeys import ExecutionTimes, GroupTimes, Journeys
from gyre.core.staleness import expected_staleness

NUM_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One claimed group. staleness: d = v_t - v_d. Parts of its time in seconds.

    token_lag: mean over its committed tokens of v_t minus the version that sampled each;
    max_token_lag: the largest. None when its calls were not read.
    """

    group: str
    task: str
    batch: str
    dispatched_version: int
    trained_version: int
    staleness: int
    slowest: str | None
    queued_s: float
    running_s: float
    scoring_s: float
    ready_s: float
    token_lag: float | None
    max_token_lag: int | None

    @property
    def total_s(self) -> float:
        """From dispatch to claim."""
        return self.queued_s + self.running_s + self.scoring_s + self.ready_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessReport:
    """rows: the claimed groups, in the order of dispatch. mean, maximum: of their d; expected: the
    identity's phi + (mu - 1) / 2. token_lag: mean over all committed tokens of those groups.
    num_unclaimed: dispatched, and in no batch that stands. num_dropped: left the job untrained."""

    job: str
    rows: tuple[GroupRow, ...]
    mean: float | None
    expected: float
    maximum: int | None
    token_lag: float | None
    max_token_lag: int | None
    num_unclaimed: int
    num_dropped: int

    @property
    def worst(self) -> tuple[GroupRow, ...]:
        """The stalest first; among equals the one that took longest."""
        ordered = sorted(self.rows, key=lambda row: (-row.staleness, -row.total_s))
        return tuple(ordered[:NUM_WORST])

    def mean_parts(self) -> dict[str, float]:
        """Mean seconds of each part of a group's time; empty without rows."""
        parts = ("queued_s", "running_s", "scoring_s", "ready_s")
        num = len(self.rows)
        return {part: sum(getattr(row, part) for row in self.rows) / num for part in parts if num}

    def as_json(self) -> dict[str, Any]:
        """All of it, as `--json` prints it."""
        rows = [asdict(row) | {"total_s": row.total_s} for row in self.rows]
        head = {key: getattr(self, key) for key in self.__slots__ if key != "rows"}
        worst = [row.group for row in self.worst]
        return head | {"mean_parts": self.mean_parts(), "worst": worst, "groups": rows}


def staleness_report(journeys: Journeys) -> StalenessReport:
    """What the folded log says. Raises ValueError when it has no job_submitted."""
    schedule = journeys.state.required_spec.schedule
    rows = tuple(
        row for group in journeys.groups.values() if (row := _row(journeys, group)) is not None
    )
    ds = [row.staleness for row in rows]
    lag, max_lag = _token_lag(journeys, rows)
    return StalenessReport(
        job=journeys.job,
        rows=rows,
        mean=sum(ds) / len(ds) if ds else None,
        expected=expected_staleness(schedule.phi, schedule.mu),
        maximum=max(ds, default=None),
        token_lag=lag,
        max_token_lag=max_lag,
        num_unclaimed=len(journeys.groups) - len(rows) - journeys.state.num_groups_dropped,
        num_dropped=journeys.state.num_groups_dropped,
    )


def _row(journeys: Journeys, group: GroupTimes) -> GroupRow | None:
    folded = journeys.state.groups.get(group.group)
    if folded is None or folded.claimed_version is None or folded.batch is None:
        return None
    if group.claimed is None or group.ready is None:
        return None
    slowest = _slowest(journeys, group)
    if slowest is None:  # nothing of it ever ran: cancelled in the queue
        started = terminated = group.ready
    else:
        times = journeys.executions[slowest]
        terminated = times.terminated if times.terminated is not None else group.ready
        started = times.started if times.started is not None else terminated
    lag, max_lag = _lag(journeys, group, folded.claimed_version)
    return GroupRow(
        group=group.group,
        task=group.task,
        batch=folded.batch,
        dispatched_version=folded.version,
        trained_version=folded.claimed_version,
        staleness=folded.claimed_version - folded.version,
        slowest=slowest,
        queued_s=started - group.dispatched,
        running_s=terminated - started,
        scoring_s=group.ready - terminated,
        ready_s=group.claimed - group.ready,
        token_lag=lag,
        max_token_lag=max_lag,
    )


def _slowest(journeys: Journeys, group: GroupTimes) -> str | None:
    """Of those that ended before the group was ready: a surplus one may run on behind it."""
    ended = [
        (times.terminated, name)
        for name in group.executions
        if (times := journeys.executions[name]).terminated is not None
        and (group.ready is None or times.terminated <= group.ready)
    ]
    return max(ended)[1] if ended else None


def _sampled(journeys: Journeys, group: GroupTimes) -> list[ExecutionTimes]:
    executions = (journeys.executions[name] for name in group.executions)
    return [times for times in executions if times.num_tokens > 0]


def _lag(
    journeys: Journeys, group: GroupTimes, trained_version: int
) -> tuple[float | None, int | None]:
    sampled = _sampled(journeys, group)
    num = sum(times.num_tokens for times in sampled)
    if not num:
        return None, None
    mean = trained_version - sum(times.sum_token_versions for times in sampled) / num
    oldest = min(t.oldest_version for t in sampled if t.oldest_version is not None)
    return mean, trained_version - oldest


def _token_lag(journeys: Journeys, rows: tuple[GroupRow, ...]) -> tuple[float | None, int | None]:
    """Weighted by tokens over all groups."""
    total = weighted = 0.0
    for row in rows:
        if row.token_lag is not None:
            sampled = _sampled(journeys, journeys.groups[row.group])
            num = sum(times.num_tokens for times in sampled)
            total, weighted = total + num, weighted + num * row.token_lag
    maximum = max((r.max_token_lag for r in rows if r.max_token_lag is not None), default=None)
    return (weighted / total if total else None), maximum
