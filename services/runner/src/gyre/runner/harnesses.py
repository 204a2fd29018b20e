"""How a job's harness is run: the port between attempts and harness profiles."""

from __future__ import annotations

from typing import Protocol

from gyre.contracts.job import JobSpec
from gyre.runner.sandbox import Command
from gyre.runner.workspace import AttemptDir


class Harnesses(Protocol):
    """Makes the command of one attempt."""

    def command(
        self, spec: JobSpec, directory: AttemptDir, *, prompt: str, key: str, proxy_url: str
    ) -> Command:
        """The command, its configuration files being written below `directory`. proxy_url: where
        the harness finds its model.

        Raises HarnessMisconfigured.
        """
        ...

    def reported_error(self, spec: JobSpec, directory: AttemptDir) -> str | None:
        """What the output of an attempt that ended says went wrong, whatever the exit status; None
        if nothing, or if this harness does not say."""
        ...
