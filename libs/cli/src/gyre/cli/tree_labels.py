"""What the parts of an execution's tree are called, in lines and in graphs."""

from __future__ import annotations

from collections.abc import Sequence

from gyre.core.tree_chains import Chain
from gyre.core.tree_nodes import Sampled
from gyre.core.tree_report import NodeView, TreeReport


class Labels:
    """What a chain is called. Calls lose the execution's id, which is on the first line."""

    def __init__(self, report: TreeReport) -> None:
        self._execution = report.fate.execution
        self._nodes = report.nodes

    def chain(self, chain: Chain) -> str:
        """Who asks, its calls, what they hold and what becomes of it."""
        calls = chain.calls
        if not calls:
            return f"{_roles(chain)}: {_size(chain.nodes)}"
        first = calls[0].node.sampled
        assert first is not None
        parts = [f"{_who(first)}: {self._range(calls)}", _size(chain.nodes)]
        parts += [_sampled(chain), _verdict(calls[0])]
        if first.fork_reason is not None:
            parts.append(f"fork: {first.fork_reason}")
        if calls[0].cause is not None:
            cause = calls[0].cause
            parts.append(f"{cause.kind} from {self.call(cause.node)}")
        return " · ".join(parts)

    def gist(self, alike: Sequence[Chain]) -> str:
        """Leaves of one kind, none of them told by itself."""
        calls = [call for chain in alike for call in chain.calls]
        nodes = [view for chain in alike for view in chain.nodes]
        first = calls[0].node.sampled
        assert first is not None
        sampled = sum(chain.num_sampled for chain in alike)
        parts = [f"{len(alike)} branches of {first.request_role}: {num_calls(len(calls))}"]
        parts += [_size(nodes), f"{sampled:,} sampled", _verdict(calls[0])]
        return " · ".join(parts)

    def _range(self, calls: Sequence[NodeView]) -> str:
        first, last = self.call(calls[0].node.id), self.call(calls[-1].node.id)
        return first if len(calls) == 1 else f"{first}..{last}, {num_calls(len(calls))}"

    def call(self, node: str) -> str:
        """The call that sampled `node`."""
        sampled = self._nodes[node].node.sampled
        assert sampled is not None
        return sampled.call.removeprefix(f"{self._execution}-")


def _who(sampled: Sampled) -> str:
    agent = "" if sampled.agent is None else f" {sampled.agent}"
    attempt = "" if sampled.attempt == 1 else f", attempt {sampled.attempt}"
    return f"{sampled.request_role}{agent}{attempt}"


def _roles(chain: Chain) -> str:
    """Of inputs that several calls share, in order: `system, user`."""
    return ", ".join(dict.fromkeys(view.node.role for view in chain.nodes))


def _size(nodes: Sequence[NodeView]) -> str:
    tokens = sum(len(view.node.token_ids) for view in nodes)
    return f"{many(len(nodes), 'node')}, {many(tokens, 'token')}"


def _sampled(chain: Chain) -> str:
    versions = chain.versions
    if versions is None:
        return f"{chain.num_sampled:,} sampled"
    low, high = versions
    under = f"v{low}" if low == high else f"v{low}..v{high}"
    return f"{chain.num_sampled:,} sampled under {under}"


def _verdict(view: NodeView) -> str:
    return f"trained by path {view.path}" if view.path else view.verdict.replace("_", " ")


def many(number: int, noun: str) -> str:
    """`1 node`, `1,347 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def num_calls(number: int) -> str:
    """`636 calls`."""
    return many(number, "call")
