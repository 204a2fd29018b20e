"""What the command line says when it cannot do what was asked: one line, exit status 2."""

from __future__ import annotations


class CommandError(Exception):
    """The message is the line shown to the user."""
