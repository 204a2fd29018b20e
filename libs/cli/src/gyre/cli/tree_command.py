"""gyre tree: one execution's trajectory tree, and what of it is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from gyre.adapters.journal import EventLost
from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import File, Run, open_run
from gyre.cli.tree_dot import dot_lines
from gyre.cli.tree_json import as_json
from gyre.cli.tree_text import text_lines
from gyre.contracts import subjects
from gyre.core.execution_fate import ExecutionFacts, Fate
from gyre.core.records import RecordError, fold_record
from gyre.core.scheduling.plans import job_of
from gyre.core.tree import Tree
from gyre.core.tree_chains import chains
from gyre.core.tree_report import TreeReport, tree_report

Execution = Annotated[str, typer.Argument(help="Its id, such as JOB-g0001-e3.")]
JobOption = Annotated[
    str | None, typer.Option("--job", help="Its job, where the execution's id does not name it.")
]


def register(app: typer.Typer) -> None:
    app.command()(tree)


def tree(
    execution: Execution,
    job: JobOption = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    as_text: Annotated[bool, typer.Option("--text", help="Print lines (the default).")] = False,
    as_dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print JSON, every node.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Every node by itself; else runs are folded.")
    ] = False,
) -> None:
    """Show an execution's trajectory tree: its messages and calls, which paths admission draws,
    which targets each carries, and why the other sampled tokens are not trained."""
    if as_text + as_dot + as_json_text > 1:
        raise CommandError("--text, --dot, --json: give one of them")
    report = asyncio.run(_report(execution, job, home, file))
    if as_json_text:
        typer.echo(json.dumps(as_json(report), indent=2))
        return
    folded = chains(report, folded=not full)
    lines = dot_lines(report, folded) if as_dot else text_lines(report, folded, gather=not full)
    for line in lines:
        typer.echo(line)


async def _report(execution: str, job: str | None, home: Path, file: Path | None) -> TreeReport:
    try:
        subjects.checked_id(execution)
    except subjects.InvalidId as error:
        raise CommandError(f"execution {execution!r}: {error}") from error
    job = job or (job_of(execution) if file is None else None)
    if job is None and file is None:
        raise CommandError(f"execution {execution!r} does not name its job: give it with --job")
    async with open_run(job, home, file) as run:
        facts = ExecutionFacts(run.job, execution)
        async for fact in run.facts():
            facts.fold(fact.sequence, fact.body)
        if facts.spec is None:
            raise CommandError(f"no fact of job {run.job!r} in the log")
        found, damaged = await _fold(run, execution)
        fate = facts.fate()
        if fate is None and damaged is None and not found.calls and not found.sealed:
            raise CommandError(f"job {run.job!r} has no execution {execution!r} in this log")
        fate = fate or Fate(job=run.job, execution=execution)
        return tree_report(found, fate, facts.spec, damaged=damaged)


async def _fold(run: Run, execution: str) -> tuple[Tree, str | None]:
    """The tree up to the first record that does not fit or is lost, and what is wrong with it."""
    found = Tree()
    try:
        async for fact in run.calls_of(execution):
            fold_record(found, execution, fact.sequence, fact.body)
    except (RecordError, EventLost) as error:
        return found, str(error)
    return found, None
