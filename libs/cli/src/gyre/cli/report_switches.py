"""The report's section on role switches: what each cost the calls that it moved."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from gyre.cli.tables import MAX_ROWS, html_table, text_table
from gyre.core.report import RunReport
from gyre.core.switches import Cost, Switch

TITLE = "Role switches: what they cost"
# moved: executions. calls: that ran when it came, and the first of their path after it. kept:
# sampled tokens. copied, again: context tokens, the latter prefilled again. cached: share at the
# destinations.
COLUMNS = (
    *("cell, role", "at s", "took s", "moved", "calls", "kept", "copied", "again"),
    *("copy s", "cached"),
)
PHASES_TITLE = "Role switches: their phases"
# Milliseconds; megabytes of either side's processes at the phase's end, at most.
PHASES_COLUMNS = (
    *("phase", "done", "undone", "p50 ms", "p99 ms", "max ms"),
    *("engine MB", "trainer MB"),
)


def switches_table(report: RunReport) -> Table:
    """The switches that moved the most tokens, in their order, then all of them."""
    table = text_table(TITLE, COLUMNS, left=COLUMNS[:1])
    rows = list(_rows(report))
    for row in rows[:-2]:
        table.add_row(*row)
    table.add_section()
    for row in rows[-2:]:
        table.add_row(*row)
    return table


def phases_table(report: RunReport) -> Table:
    """What each phase of a change took, over all of them, and the most that either side held."""
    table = text_table(PHASES_TITLE, PHASES_COLUMNS, left=PHASES_COLUMNS[:1])
    for row in _phase_rows(report):
        table.add_row(*row)
    return table


def switches_html(report: RunReport) -> str:
    """As the tables; empty where nothing was moved, and where no phase was told."""
    switches = html_table(TITLE, COLUMNS, _rows(report)) if report.switches.rows else ""
    if not report.switches.phases.by_name:
        return switches
    return switches + html_table(PHASES_TITLE, PHASES_COLUMNS, _phase_rows(report))


def _phase_rows(report: RunReport) -> Iterator[tuple[str, ...]]:
    for name, times in report.switches.phases.rows():
        seconds = times.summary()
        took = (seconds[key] for key in ("p50_s", "p99_s", "max_s"))
        sides = (times.engine_bytes, times.trainer_bytes)
        yield (
            name,
            str(len(times.seconds)),
            str(times.num_undone),
            *("-" if value is None else f"{1e3 * value:.1f}" for value in took),
            *("-" if value is None else f"{value / 1e6:.0f}" for value in sides),
        )


def _rows(report: RunReport) -> Iterator[tuple[str, ...]]:
    """Of each switch that is shown, of all, and of what moved without one."""
    switches = report.switches
    began = report.started_at or 0.0
    for switch in _shown(switches.rows):
        took = _took(switch)
        name, began_s = f"{switch.cell} {switch.to}", f"{switch.time - began:.1f}"
        yield name, began_s, took, str(switch.num_executions), *_cost(switch.cost)
    num = sum(switch.num_executions for switch in switches.rows)
    yield f"all {len(switches.rows)}", "", "", str(num), *_cost(switches.total())
    yield "no switch", "", "", "", *_cost(switches.other)


def _took(switch: Switch) -> str:
    if switch.seconds is not None:
        return f"{switch.seconds:.2f}"
    return "undone" if switch.undone else "-"


def _shown(rows: list[Switch]) -> list[Switch]:
    if len(rows) <= MAX_ROWS:
        return rows
    weight = sorted(
        range(len(rows)),
        key=lambda i: rows[i].cost.tokens_migrated + rows[i].cost.tokens_prefilled_again,
    )
    return [rows[i] for i in sorted(weight[-MAX_ROWS:])]


def _cost(cost: Cost) -> tuple[str, ...]:
    share = "-" if cost.cached_share is None else f"{cost.cached_share:.1%}"
    counts = cost.tokens_kept, cost.tokens_migrated, cost.tokens_prefilled_again
    calls = f"{cost.calls_rerouted} + {cost.calls_moved}"
    return calls, *(str(count) for count in counts), f"{cost.migration_s:.3f}", share
