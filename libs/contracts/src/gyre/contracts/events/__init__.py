"""Everything that can happen, by writer. Importing this package registers every type."""

from gyre.contracts.events import (
    calls,
    cells,
    executions,
    groups,
    lost,
    requests,
    scheduling,
    scores,
    steps,
)

__all__ = [
    "calls",
    "cells",
    "executions",
    "groups",
    "lost",
    "requests",
    "scheduling",
    "scores",
    "steps",
]
