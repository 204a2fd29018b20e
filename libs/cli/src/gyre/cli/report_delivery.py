"""The report's section on delivery: what of the admitted targets was trained, what sharing saved,
and whose records were damaged."""

from __future__ import annotations

import html
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gyre.core.delivery import Deliveries, StepDelivery

TITLE = "Delivery: targets that admission chose, and tokens computed for them"
# A long run has thousands; report.json has them all.
MAX_ROWS = 20
# targets: chosen by admission. delivered: of them, trained. too long: paths that were dropped
# before. flat: tokens of the admitted paths, one behind the other. forwarded: through the model.
# saved: of the flat ones, those that a shared prefix spared.
COLUMNS = ("step", "targets", "delivered", "too long", "flat", "forwarded", "saved")
QUARANTINE = "Executions in quarantine"


def delivery_table(deliveries: Deliveries) -> Table:
    """The last steps and those that were not delivered whole, then all of them."""
    table = Table(title=TITLE, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in _rows(deliveries):
        table.add_row(*row)
    if deliveries.total is not None:
        table.add_section()
        table.add_row("all", *_row(deliveries.total)[1:])
    return table


def quarantine_table(deliveries: Deliveries) -> Table:
    """Who trains nothing, and why."""
    table = Table(title=QUARANTINE, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("execution", no_wrap=True)
    table.add_column("what is wrong with its records", overflow="fold")
    for execution, error in _quarantined(deliveries):
        table.add_row(execution, Text(error))  # what is no markup
    return table


def delivery_html(deliveries: Deliveries) -> str:
    """Both; empty where there is nothing to tell."""
    found = ""
    if deliveries.total is not None:
        rows = [*_rows(deliveries), ("all", *_row(deliveries.total)[1:])]
        found += _html(TITLE, COLUMNS, rows)
    if deliveries.quarantined:
        found += _html(QUARANTINE, ("execution", "records"), list(_quarantined(deliveries)))
    return found


def _rows(deliveries: Deliveries) -> Iterator[tuple[str, ...]]:
    before = [step for step in deliveries.steps[:-MAX_ROWS] if step.is_short]
    yield from map(_row, (*before[-MAX_ROWS:], *deliveries.steps[-MAX_ROWS:]))


def _row(step: StepDelivery) -> tuple[str, ...]:
    flat, saved = step.num_path_tokens, step.num_saved_tokens
    share = f" ({saved / flat:.1%})" if saved is not None and flat else ""
    return (
        str(step.step),
        str(step.num_chosen),
        f"{step.num_delivered} ({step.delivered_share:.2%})",
        str(step.num_paths_too_long),
        _count(flat),
        _count(step.num_forwarded_tokens),
        _count(saved) + share,
    )


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _quarantined(deliveries: Deliveries) -> Iterator[tuple[str, str]]:
    for one in deliveries.quarantined[:MAX_ROWS]:
        yield one.execution, one.error
    left = len(deliveries.quarantined) - MAX_ROWS
    if left > 0:
        yield f"{left} more", "report.json has them all"


def _html(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"
