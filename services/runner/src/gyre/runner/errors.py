"""Errors of the runner; the message of each is one line for a person."""

from __future__ import annotations


class RunnerError(Exception):
    """Root of this package's errors."""


class WorkspaceError(RunnerError):
    """A workspace could not be made: its task, the disk or a permission is at fault."""


class SandboxError(RunnerError):
    """The sandbox could not start, watch or end a process."""


class HarnessMisconfigured(RunnerError):
    """The job names a harness, or settings of one, that this runner cannot run."""


class AlreadyRunning(RunnerError):
    """Another runner owns this stack's executions."""
