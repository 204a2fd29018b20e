"""A recorded run, read as a workload for the simulator."""

from __future__ import annotations

from pathlib import Path

from gyre.cli.errors import CommandError
from gyre.cli.runs import open_run
from gyre.simulator.trace import Trace, trace
from gyre.simulator.trace_fold import TraceError, TraceFold


async def read_trace(job: str | None, home: Path, file: Path | None) -> Trace:
    """Raises CommandError for a run that is not there or cannot serve as a workload."""
    fold = TraceFold()
    async with open_run(job, home, file) as run:
        try:
            async for fact in run.facts():
                fold.fold(fact.envelope.time, fact.body)
            return trace(fold)
        except TraceError as error:
            raise CommandError(f"{run.job}: {error}") from error
