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


def switches_html(report: RunReport) -> str:
    """As `switches_table`; empty where nothing was moved."""
    if not report.switches.rows:
        return ""
    return html_table(TITLE, COLUMNS, _rows(report))


def _rows(report: RunReport) -> Iterator[tuple[str, ...]]:
    """Of each switch that is shown, of all, and of what moved without one."""
    switches = report.switches
    began = report.started_at or 0.0
    for switch in _shown(switches.rows):
        took = "-" if switch.seconds is None else f"{switch.seconds:.2f}"
        name, began_s = f"{switch.cell} {switch.to}", f"{switch.time - began:.1f}"
        yield name, began_s, took, str(switch.num_executions), *_cost(switch.cost)
    num = sum(switch.num_executions for switch in switches.rows)
    yield f"all {len(switches.rows)}", "", "", str(num), *_cost(switches.total())
    yield "no switch", "", "", "", *_cost(switches.other)


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
