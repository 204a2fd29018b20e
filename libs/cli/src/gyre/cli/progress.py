"""A job's progress: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gyre.contracts.http import JobView

POLL_S = 0.5
LINE_EVERY_S = 10.0
_FINISHED = ("succeeded", "cancelled", "failed")


def watch_job(fetch: Callable[[], JobView], console: Console, total_executions: int) -> JobView:
    """Show the job until it ends; returns its last view."""
    if console.is_terminal:
        return _bars(fetch, console, total_executions)
    return _lines(fetch, console)


def _bars(fetch: Callable[[], JobView], console: Console, total_executions: int) -> JobView:
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console
    ) as progress:
        heldout = progress.add_task("held-out executions", total=None, note="")
        dispatched = progress.add_task("dispatched", total=total_executions, note="")
        rollout = progress.add_task("rollout executions", total=total_executions, note="")
        steps = progress.add_task("steps", total=None, note="")
        while True:
            view = fetch()
            progress.update(
                heldout,
                completed=view.num_heldout_terminated,
                total=view.num_heldout_dispatched or None,
                note=_phase(view),
            )
            progress.update(dispatched, completed=view.num_dispatched)
            progress.update(
                rollout,
                completed=view.num_terminated,
                note=f"w {view.waterlevel} of capacity {view.capacity}",
            )
            progress.update(
                steps, completed=view.num_steps_done, total=view.num_steps, note=_roles(view)
            )
            if view.status in _FINISHED:
                return view
            time.sleep(POLL_S)


def _lines(fetch: Callable[[], JobView], console: Console) -> JobView:
    said = 0.0
    while True:
        view = fetch()
        if time.monotonic() - said >= LINE_EVERY_S or view.status in _FINISHED:
            said = time.monotonic()
            console.print(
                f"{view.id} {view.status} {_phase(view)}: "
                f"step {view.num_steps_done}/{view.num_steps}, "
                f"executions {view.num_terminated}/{view.num_dispatched}, "
                f"held-out {view.num_heldout_terminated}/{view.num_heldout_dispatched}, "
                f"w {view.waterlevel}, capacity {view.capacity}, cells {_roles(view)}",
                highlight=False,
            )
        if view.status in _FINISHED:
            return view
        time.sleep(POLL_S)


def _phase(view: JobView) -> str:
    return f"{view.phase}, paused ({view.pause_reason})" if view.paused else view.phase


def _roles(view: JobView) -> str:
    return " ".join(f"{cell.cell}:{cell.role}" for cell in view.cells)
