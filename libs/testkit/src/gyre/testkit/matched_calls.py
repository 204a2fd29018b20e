"""Calls of one execution as the proxy records them, without a proxy: planned, recorded, sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.core.matching import Matcher, Plan, SentTurn
from gyre.core.tree import Tree, fold
from gyre.core.tree_nodes import sampled_node_id


@dataclass
class MatchedCalls:
    """A matcher and the log of what came of its plans. sent: what each sampled node went out as."""

    matcher: Matcher = field(default_factory=lambda: Matcher(Tree()))
    log: list[CallRecorded | CallUndelivered] = field(default_factory=list)
    sent: dict[str, SentTurn] = field(default_factory=dict)

    def record(
        self, plan: Plan, output: Sequence[int], turn: SentTurn | None, **changes: Any
    ) -> CallRecorded:
        """Records a call of `plan` that sampled `output` and was sent as `turn`, if it was.

        changes: fields of the event that are not as in a committed call of a main agent.
        """
        name = f"e-c{len(self.log):05d}"
        parent, segments = self.matcher.unrecorded(plan.parent)
        usual: dict[str, Any] = {
            "call": name,
            "execution": "e",
            "attempt": 1,
            "request_role": "main",
            "parent": parent,
            "segments": segments,
            "node": sampled_node_id(plan.parent, name, output),
            "output_ids": tuple(output),
            "output_logprobs": (-0.5,) * len(output),
            "spans": (),
            "num_input_tokens": plan.num_input_tokens,
            "num_cached_tokens": 0,
            "temperature": 1.0,
            "max_new_tokens": 8,
            "finish_reason": "stop",
            "outcome": "committed",
            "fork_reason": plan.fork_reason,
            "duration_s": 0.0,
        }
        event = CallRecorded(**usual | changes)
        self.log.append(event)
        self.matcher.recorded(event)
        if turn is not None:
            self.sent[event.node] = turn
            self.matcher.sent(event.node, turn)
        return event

    def lose(self) -> None:
        """The last call's answer turns out not to have arrived."""
        last = next(event for event in reversed(self.log) if isinstance(event, CallRecorded))
        event = CallUndelivered(call=last.call, execution="e", reason="test")
        self.log.append(event)
        self.matcher.tree.evolve(event)

    def restart(self) -> None:
        """The proxy comes back with nothing but the log."""
        self.matcher = Matcher(fold(self.log))
        for node, turn in self.sent.items():
            self.matcher.sent(node, turn)
