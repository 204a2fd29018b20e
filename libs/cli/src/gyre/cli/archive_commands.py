"""gyre export, gyre import: a run as one file, and back."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from gyre.adapters.archive import (
    ArchiveError,
    Header,
    Hider,
    read_archive,
    read_header,
    write_archive,
)
from gyre.adapters.journal import Fact
from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.runs import import_path, open_run
from gyre.embedded.paths import StackPaths, read_json


def register(app: typer.Typer) -> None:
    app.command("export")(export_run)
    app.command("import")(import_run)


def export_run(
    job: str,
    home: Home = DEFAULT_HOME,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; <job>.jsonl.gz if not given.")
    ] = None,
    calls: Annotated[
        bool, typer.Option("--calls/--no-calls", help="With the calls, or the facts alone.")
    ] = True,
    hide: Annotated[
        list[str] | None,
        typer.Option(help="A text to take out, a directory's name for one; may be repeated."),
    ] = None,
) -> None:
    """Write a run's facts and calls into one file, which replays anywhere."""
    path = out or Path(f"{job}.jsonl.gz")
    hider = Hider((*_secrets(home), *(hide or ())))
    try:
        header = asyncio.run(_export(job, home, path, hider, calls))
    except ArchiveError as error:
        raise CommandError(f"{path}: {error}") from error
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    hidden = f", {hider.num} texts hidden" if hider.num else ""
    size = path.stat().st_size / 1000
    typer.echo(f"{path}: {header.num_facts} facts, {header.num_calls} calls, {size:.0f} kB{hidden}")


async def _export(job: str, home: Path, path: Path, hider: Hider, calls: bool) -> Header:
    async with open_run(job, home) as run:
        return await write_archive(
            path,
            job=run.job,
            release=importlib.metadata.version("gyre-cli"),
            facts=run.facts(),
            calls=run.calls(whole=True) if calls else _nothing(),
            hider=hider,
        )


async def _nothing() -> AsyncIterator[Fact]:
    none: tuple[Fact, ...] = ()
    for fact in none:
        yield fact


def _secrets(home: Path) -> tuple[str, ...]:
    """The stack's own: no event has a field for one, but a harness may have printed what it saw."""
    stored = read_json(StackPaths.of(home).secrets) or {}
    return tuple(value for value in stored.values() if isinstance(value, str))


def import_run(
    file: Annotated[Path, typer.Argument(help="A file that `gyre export` wrote.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Take an exported run in, so that replay, why, staleness, report and compare know its job."""
    try:
        header = read_header(file)
        kinds = Counter(stream for stream, _ in read_archive(file))
    except ArchiveError as error:
        raise CommandError(f"{file}: {error}") from error
    target = import_path(home, header.job)
    if target.is_file():
        _same_or_refused(target, header)
    else:
        _copy(file, target)
    typer.echo(f"{header.job}: {kinds['facts']} facts, {kinds['calls']} calls, now in {target}")


def _same_or_refused(target: Path, header: Header) -> None:
    try:
        known = read_header(target)
    except ArchiveError as error:
        raise CommandError(f"{target}: {error}; remove it and import again") from error
    if known.digest != header.digest:
        raise CommandError(
            f"job {header.job} was imported before with other events; remove {target} first"
        )


def _copy(file: Path, target: Path) -> None:
    """Whole or not at all."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, partial)
        partial.replace(target)
    except OSError as error:
        raise CommandError(f"{target}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
