"""Where a harness runs: one port (`base`), one file per kind of isolation."""

from __future__ import annotations

from gyre.runner.sandbox.base import Command, Limits, Process, Sandbox

__all__ = ["Command", "Limits", "Process", "Sandbox"]
