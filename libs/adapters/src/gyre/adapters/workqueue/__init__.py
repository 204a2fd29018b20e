"""The work queue: one port (`base`), one file per implementation."""

from __future__ import annotations

from gyre.adapters.workqueue.base import ACK_WAIT_S, WorkItem, WorkQueue

__all__ = ["ACK_WAIT_S", "WorkItem", "WorkQueue"]
