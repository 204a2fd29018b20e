"""An execution's tree as JSON; docs/trees.md says what each field is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gyre.core.tree_report import NodeView, Totals, TreeReport


def as_json(report: TreeReport) -> dict[str, Any]:
    """Every node, in the order of the log."""
    admission = {
        "attempt": report.attempt,
        "paths": [asdict(path) for path in report.paths],
        "left_out": [asdict(leaf) for leaf in report.left_out],
    }
    return asdict(report.fate) | {
        "sealed": report.tree.sealed,
        "damaged": report.damaged,
        "admission": admission,
        "totals": _totals(report.totals),
        "nodes": [_node(view) for view in report.nodes.values()],
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return asdict(totals.counts) | {
        "num_nodes": totals.num_nodes,
        "num_input_nodes": totals.num_input_nodes,
        "num_roots": totals.num_roots,
        "calls": dict(totals.calls),
        "sampled_tokens": dict(totals.sampled_tokens),
        "num_path_tokens": totals.num_path_tokens,
        "num_carried_tokens": totals.num_carried_tokens,
    }


def _node(view: NodeView) -> dict[str, Any]:
    node = view.node
    shown: dict[str, Any] = {
        "id": node.id,
        "parent": node.parent,
        "role": node.role,
        "num_tokens": len(node.token_ids),
        "num_context_tokens": node.num_context_tokens,
        "verdict": view.verdict,
    }
    if node.sampled is None:
        return shown
    sampled = node.sampled
    return shown | {
        "call": sampled.call,
        "attempt": sampled.attempt,
        "request_role": sampled.request_role,
        "agent": sampled.agent,
        "parent_agent": sampled.parent_agent,
        "status": sampled.status,
        "fork_reason": sampled.fork_reason,
        "temperature": sampled.temperature,
        "spans": [span.model_dump() for span in sampled.spans],
        "path": view.path,
        "cause": None if view.cause is None else asdict(view.cause),
    }
