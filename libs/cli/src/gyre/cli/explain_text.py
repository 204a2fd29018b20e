"""Explanations as text and tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.table import Table

from gyre.contracts.envelope import Decision
from gyre.core.explain import Check, Explanation, StalenessReport, TurningPoint
from gyre.core.explain.bursts import BurstEndView
from gyre.core.explain.staleness import GroupRow

# The last ones are nearest to what is asked; --json has all.
MAX_POINTS = 12


def why_lines(
    told: Explanation, decided: tuple[int, Decision] | None, points: Sequence[TurningPoint]
) -> Iterator[str]:
    """The whole answer of `gyre why`."""
    yield (
        f"job {told.job} at {clock(told.now)}, after fact {told.sequence}: {told.status}, "
        f"phase {told.phase}, policy {told.policy}"
    )
    if decided is not None:
        yield f"asked about: {decided[1].TYPE} at {decided[0]}, as it stood when that was decided"
    if told.burst is not None and told.burst.reason:
        yield told.burst.text()
    yield ""
    yield verdict(told)
    yield from (f"  {line}" for line in map(_check_line, told.checks))
    if told.due is not None and told.supply_since is not None:
        ends = "runs" if told.due > told.now else "ran"
        yield f"  supply timer: since {clock(told.supply_since)}, {ends} out at {clock(told.due)}"
    if told.burst_end is not None and (told.burst_end.final or told.burst_end.checks):
        yield ""
        yield from _burst_end_lines(told.burst_end)
    if told.waiting is not None:
        yield from ("", told.waiting.text())
    if told.cells:
        yield from ("", "cells")
        yield from (
            f"  {one.cell}: {one.role}, {one.num_executions} of {one.capacity} executions; "
            f"{one.turn or 'its turn'}"
            for one in told.cells
        )
    yield from _point_lines(points)


def verdict(told: Explanation) -> str:
    """One line: what happens, or the first reason why it does not."""
    who = "no cell" if told.cell is None else f"cell {told.cell}"
    if told.obstacle is not None:
        lead = f"{who} joins training" if told.cell is None else f"{who} does not join training"
        return f"{lead}: {told.obstacle}"
    failing = [f"{check.name}: {check.missing}" for check in told.checks if not check.holds]
    if failing:
        return f"{who} is next to join training and waits for {'; '.join(failing)}"
    return f"{who} joins training now"


def _check_line(check: Check) -> str:
    mark = "yes" if check.holds else "NO "
    if check.left is None or check.right is None:
        return f"{mark} {check.name}: {check.terms}"
    return f"{mark} {check.name}: {check.left:g} {check.relation} {check.right:g}  ({check.terms})"


def _burst_end_lines(end: BurstEndView) -> Iterator[str]:
    core = "stays in training" if end.core_stays else "goes back to rollout"
    staying = f", and so do cells {list(end.staying_satellites)}" if end.staying_satellites else ""
    if end.final:
        yield f"burst {end.burst} is over: the core {core}{staying}"
    elif end.checks:
        yield f"burst {end.burst} goes on; for the core to stay behind it:"
    yield from (f"  {_check_line(check)}" for check in end.checks)


def _point_lines(points: Sequence[TurningPoint]) -> Iterator[str]:
    if not points:
        return
    hidden = len(points) - MAX_POINTS
    yield ""
    yield "decisions about roles" + (
        f", the last {MAX_POINTS} of {len(points)}" if hidden > 0 else ""
    )
    for point in points[-MAX_POINTS:]:
        yield (
            f"  {point.sequence} at {clock(point.now)}: {point.outcome}; "
            f"{point.what}: {point.left} against {point.right}"
        )


def clock(unix_s: float) -> str:
    """ISO 8601, UTC, to the millisecond: as `--at` takes it."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def staleness_tables(told: StalenessReport) -> tuple[Table, ...]:
    """The groups, the worst of them, and the means."""
    groups = _groups(told, f"job {told.job}: its groups, in the order of dispatch", told.rows)
    worst = _groups(told, "the worst", told.worst)
    return groups, worst, _means(told)


def _groups(told: StalenessReport, title: str, rows: Sequence[GroupRow]) -> Table:
    table = Table("group", title=title)
    for name in ("v_d", "v_t", "d", "queued s", "running s", "scoring s", "ready s", "total s"):
        table.add_column(name, justify="right")
    table.add_column("slowest")
    for row in rows:
        parts = (row.queued_s, row.running_s, row.scoring_s, row.ready_s, row.total_s)
        versions = (row.dispatched_version, row.trained_version, row.staleness)
        slowest = (row.slowest or "").removeprefix(f"{row.group}-")
        group = row.group.removeprefix(f"{told.job}-")
        table.add_row(group, *map(str, versions), *(f"{part:.2f}" for part in parts), slowest)
    return table


def _means(told: StalenessReport) -> Table:
    table = Table("figure", title="all groups")
    table.add_column("value", justify="right")
    table.add_row("claimed groups", str(len(told.rows)))
    table.add_row("dispatched and not claimed", str(told.num_unclaimed))
    table.add_row("dropped", str(told.num_dropped))
    table.add_row("mean d", _number(told.mean))
    table.add_row("identity phi + (mu - 1) / 2", _number(told.expected))
    table.add_row("largest d", _number(told.maximum))
    table.add_row("mean lag of a token", _number(told.token_lag))
    table.add_row("largest lag of a token", _number(told.max_token_lag))
    for part, seconds in told.mean_parts().items():
        table.add_row(f"mean {part.removesuffix('_s')}, s", f"{seconds:.2f}")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
