"""The report's section on delivery: what of the admitted targets was trained, what sharing saved,
whose records were damaged, and which facts cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from gyre.cli.tables import MAX_ROWS, html_table, last_and_odd, text_table
from gyre.core.delivery import Deliveries, StepDelivery

TITLE = "Delivery: targets that admission chose, and tokens computed for them"
# targets: chosen by admission. delivered: of them, trained; `not applied` where the step's update
# was not. too long: paths that were dropped before. flat: tokens of the admitted paths, one behind
# the other. forwarded: through the model. saved: of the flat ones, those that sharing spared.
COLUMNS = ("step", "targets", "delivered", "too long", "flat", "forwarded", "saved")
QUARANTINE = "Executions in quarantine"
LOST = "Facts that cannot be read"


def delivery_table(deliveries: Deliveries) -> Table:
    """The last steps and those that were not delivered whole, then all that were applied."""
    table = text_table(TITLE, COLUMNS)
    for row in _rows(deliveries):
        table.add_row(*row)
    if deliveries.total is not None:
        table.add_section()
        table.add_row("all", *_row(deliveries.total)[1:])
    return table


def quarantine_table(deliveries: Deliveries) -> Table:
    """Who trains nothing, and why."""
    table = text_table(QUARANTINE, ())
    table.add_column("execution", no_wrap=True)
    table.add_column("what is wrong with its records", overflow="fold")
    for execution, error in _quarantined(deliveries):
        table.add_row(execution, Text(error))  # what is no markup
    return table


def lost_table(deliveries: Deliveries) -> Table:
    """Whom each harms, and what is wrong with it."""
    table = text_table(LOST, ())
    table.add_column("of", no_wrap=True)
    table.add_column("what is wrong", overflow="fold")
    for owner, error in _lost(deliveries):
        table.add_row(owner, Text(error))
    return table


def delivery_html(deliveries: Deliveries) -> str:
    """All of them; empty where there is nothing to tell."""
    found = ""
    if deliveries.steps:
        rows = list(_rows(deliveries))
        if deliveries.total is not None:
            rows.append(("all", *_row(deliveries.total)[1:]))
        found += html_table(TITLE, COLUMNS, rows)
    if deliveries.quarantined:
        found += html_table(QUARANTINE, ("execution", "records"), _quarantined(deliveries))
    if deliveries.lost_facts:
        found += html_table(LOST, ("of", "what is wrong"), _lost(deliveries))
    return found


def _rows(deliveries: Deliveries) -> Iterator[tuple[str, ...]]:
    yield from map(_row, last_and_odd(deliveries.steps, lambda step: step.is_short))


def _row(step: StepDelivery) -> tuple[str, ...]:
    delivered, flat, saved = step.delivered_share, step.num_path_tokens, step.num_saved_tokens
    share = f" ({saved / flat:.1%})" if saved is not None and flat else ""
    return (
        str(step.step),
        str(step.num_chosen),
        "not applied" if delivered is None else f"{step.num_delivered} ({delivered:.2%})",
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


def _lost(deliveries: Deliveries) -> Iterator[tuple[str, str]]:
    for one in deliveries.lost_facts[:MAX_ROWS]:
        yield one.execution or "the job, which ends there", one.error
    left = len(deliveries.lost_facts) - MAX_ROWS
    if left > 0:
        yield f"{left} more", "report.json has them all"
