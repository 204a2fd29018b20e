"""Harness executions: sandboxes, processes, time-outs, workspaces."""
