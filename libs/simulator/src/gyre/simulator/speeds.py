"""How fast the cluster is, apart from the executions themselves. Seconds of virtual time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """node_exponent: how training scales inside a cell. A cell of reference_nodes trains as many
    node-seconds of work a second as it has nodes; one of n nodes (n / reference_nodes) to the power
    of node_exponent as many.

    start_s: order to harness. scoring_s: an execution's end to its score. ready_s: a group's last
    score to its readiness. to_training_s, to_rollout_s: role switches. pull_s: a satellite's
    weights before it joins an open batch. join_s: what a cell that trains already takes to join.
    update_s: reduction, optimizer, broadcast. publish_s: checkpoint and loading by every engine.
    """

    node_exponent: float = 1.0
    reference_nodes: float = 1.0
    start_s: float = 0.0
    scoring_s: float = 0.0
    ready_s: float = 0.0
    to_training_s: float = 8.52
    to_rollout_s: float = 3.46
    pull_s: float = 0.0
    join_s: float = 0.0
    update_s: float = 0.0
    publish_s: float = 0.0

    def micro_step_s(self, node_s: float, nodes: float) -> float:
        """Seconds that a cell of `nodes` needs for work of `node_s` node-seconds."""
        scale: float = (nodes / self.reference_nodes) ** self.node_exponent
        return node_s / (self.reference_nodes * scale)
