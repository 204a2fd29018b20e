"""Everything that can happen, one file per writer. Importing this package registers every type."""

from gyre.contracts.events import calls, cells, executions, groups, lost, scheduling, scores

__all__ = ["calls", "cells", "executions", "groups", "lost", "scheduling", "scores"]
