"""What the first node of a cell asks of the others, on core NATS, and how a rank proves itself.

The other nodes fold no log and decide nothing: every command of a rank comes over its control
connection from the first node, so that the order is the same on all. No secret is in a message:
both sides derive the ticket from the cluster's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from gyre.cell_agent.trainer.process.launch import TrainerLaunch

Place = tuple[str, int]
"""(start, rank): one rank of one start of the cell's trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNode:
    """Answered with a NodeReport once the node is there."""

    do: Literal["report"] = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRank:
    """start: names this start of the cell's trainer. control: host:port where the rank shall call.
    Answered with {"pid"}."""

    start: str
    job: str
    control: str
    launch: TrainerLaunch
    do: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRank:
    """SIGKILL, if it still lives. Answered with {}."""

    start: str
    rank: int
    do: Literal["end"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded:
    """Said by the node unasked. status: the exit status, negative for a signal."""

    start: str
    rank: int
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """num_ranks: the most that it takes, None for its even share."""

    host: str
    num_ranks: int | None


Request = ReportNode | StartRank | EndRank
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
ENDED = TypeAdapter(RankEnded)
REPORT = TypeAdapter(NodeReport)
ANSWER: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
