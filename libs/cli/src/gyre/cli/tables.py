"""Tables of the report, for a terminal and for the page, and which rows of a long run they show."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

# A long run has thousands; report.json has them all.
MAX_ROWS = 20

RowT = TypeVar("RowT")


def last_and_odd(rows: Sequence[RowT], is_odd: Callable[[RowT], bool]) -> list[RowT]:
    """The last MAX_ROWS, and before them as many of the earlier ones that are odd."""
    odd = [row for row in rows[:-MAX_ROWS] if is_odd(row)]
    return [*odd[-MAX_ROWS:], *rows[-MAX_ROWS:]]


def text_table(title: str, columns: Iterable[str], *, left: Collection[str] = ()) -> Table:
    """Without rows. Columns are aligned to the right, but for those in `left`."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def html_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """With its heading; every cell is text, none is markup."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>"
