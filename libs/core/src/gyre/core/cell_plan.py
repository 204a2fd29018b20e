"""Cells formed from a node inventory: which GPUs make up which cell's ranks.

Pure. Invariants:
- each GPU is in at most one cell; what is left over is named, with the reason;
- a tensor-parallel group, which talks most, never leaves its node;
- a cell lies in the tightest link class that holds it: within each domain of each class there are
  as many cells as its tensor-parallel groups make, so none is spread wider than it must be;
- the same inventory gives the same plan;
- agents that are told how many ranks their nodes take spread them as the plan does.

Ranks are numbered as Megatron does, tensor fastest and pipeline slowest, and filled node by node:
what crosses nodes first is the pipeline, which talks least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gyre.contracts.inventory import NODE, Inventory, NodeEntry
from gyre.contracts.training_job import LayoutSection


class LayoutDoesNotFit(ValueError):
    """No cell of this layout can be formed. The message says why and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """What a cell has of one node. agent: the node's number in the cell, 0 leads. ranks[i] runs on
    gpus[i], the GPU's index on that node."""

    node: str
    agent: int
    gpus: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """link: the link class that holds the cell, NODE where it is one node; domain: which of it."""

    cell: int
    link: str
    domain: str
    shares: tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """GPUs in no cell. reason: a line."""

    node: str
    gpus: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    layout: LayoutSection
    cells: tuple[PlannedCell, ...]
    unused: tuple[Unused, ...]


@dataclass(slots=True, kw_only=True)
class _Stock:
    """A node's tensor-parallel groups that are in no cell yet; `take` moves them out."""

    node: NodeEntry
    groups: list[tuple[int, ...]] = field(default_factory=list)

    def take(self, count: int) -> tuple[int, ...]:
        taken, self.groups = self.groups[:count], self.groups[count:]
        return tuple(gpu for group in taken for gpu in group)


def plan_cells(inventory: Inventory, layout: LayoutSection) -> CellPlan:
    """As many cells as the links allow, the tightest first. Raises LayoutDoesNotFit: none."""
    stocks = [_Stock(node=node, groups=_groups(node, layout)) for node in inventory.nodes]
    wanted = layout.num_ranks // layout.tensor
    cells: list[PlannedCell] = []
    for link, domain, members in _domains(inventory, stocks):
        while sum(len(stock.groups) for stock in members) >= wanted:
            shares = _form(members, layout)
            cells.append(PlannedCell(cell=len(cells), link=link, domain=domain, shares=shares))
    if not cells:
        raise LayoutDoesNotFit(_why_none(inventory, layout))
    return CellPlan(
        layout=layout, cells=tuple(cells), unused=tuple(_leftovers(stocks, layout, wanted))
    )


def spread_ranks(layout: LayoutSection, limits: Sequence[int | None]) -> tuple[int, ...]:
    """The node of each rank of one cell, in the order of nodes, tensor-parallel groups whole.
    limits: the most ranks that each node takes, None for an even share of those that are left, and
    of what the limits of later nodes leave over.

    Raises LayoutDoesNotFit."""
    homes: list[int] = []
    for node, limit in enumerate(limits):
        left = (layout.num_ranks - len(homes)) // layout.tensor
        share = _share(layout, limits[node:], left) if limit is None else limit // layout.tensor
        homes += [node] * (min(left, share) * layout.tensor)
    if len(homes) < layout.num_ranks:
        raise LayoutDoesNotFit(
            f"the cell's {len(limits)} nodes take {len(homes)} ranks in tensor-parallel groups of "
            f"{layout.tensor}, and the job's layout has {layout.num_ranks}: give the cell more "
            "nodes, or raise GYRE_NODE_RANKS on them"
        )
    return tuple(homes)


def _share(layout: LayoutSection, limits: Sequence[int | None], left: int) -> int:
    """How many of the `left` tensor-parallel groups the first of these nodes takes, which has no
    limit: an even share, or more where the others' limits do not take theirs."""
    limited = [limit // layout.tensor for limit in limits if limit is not None]
    even = -(-left // len(limits))
    return max(even, -(-(left - sum(limited)) // (len(limits) - len(limited))))


def _groups(node: NodeEntry, layout: LayoutSection) -> list[tuple[int, ...]]:
    """The node's GPUs as tensor-parallel groups of neighbours."""
    size = layout.tensor
    return [tuple(range(at * size, (at + 1) * size)) for at in range(node.gpus // size)]


def _domains(
    inventory: Inventory, stocks: Sequence[_Stock]
) -> Iterator[tuple[str, str, list[_Stock]]]:
    """(link class, domain, its nodes), tightest class first, in the inventory's order."""
    for stock in stocks:
        yield NODE, stock.node.name, [stock]
    for link in inventory.link_classes:
        members: dict[str, list[_Stock]] = {}
        for stock in stocks:
            domain = stock.node.links.get(link)
            if domain is not None:
                members.setdefault(domain, []).append(stock)
        for domain, those in members.items():
            yield link, domain, those


def _form(members: Sequence[_Stock], layout: LayoutSection) -> tuple[NodeShare, ...]:
    """A cell on few nodes: those that have most left, spread over them as its agents will."""
    # Equals stay in the inventory's order.
    fullest = sorted(members, key=lambda one: -len(one.groups))
    homes = spread_ranks(layout, [len(one.groups) * layout.tensor for one in fullest])
    return tuple(
        NodeShare(
            node=stock.node.name,
            agent=agent,
            gpus=stock.take(homes.count(agent) // layout.tensor),
            ranks=tuple(rank for rank, home in enumerate(homes) if home == agent),
        )
        for agent, stock in enumerate(fullest[: homes[-1] + 1])
    )


def _leftovers(stocks: Sequence[_Stock], layout: LayoutSection, wanted: int) -> Iterator[Unused]:
    for stock in stocks:
        whole = tuple(gpu for group in stock.groups for gpu in group)
        if whole:
            yield Unused(
                node=stock.node.name,
                gpus=whole,
                reason=f"a cell takes {wanted} groups of {layout.tensor}, and no domain has as "
                "many left",
            )
        odd = tuple(range(stock.node.gpus - stock.node.gpus % layout.tensor, stock.node.gpus))
        if odd:
            yield Unused(
                node=stock.node.name,
                gpus=odd,
                reason=f"tensor = {layout.tensor} does not divide the node's {stock.node.gpus}",
            )


def _why_none(inventory: Inventory, layout: LayoutSection) -> str:
    largest = max(node.gpus for node in inventory.nodes)
    if largest < layout.tensor:
        return (
            f"tensor = {layout.tensor}: a tensor-parallel group stays in one node, and the largest "
            f"has {largest} GPUs; lower tensor, or raise pipeline instead"
        )
    return (
        f"a cell has {layout.num_ranks} ranks, and no domain of nodes that are linked holds as "
        f"many in groups of {layout.tensor}; use a smaller layout, or name a link class that more "
        "nodes share"
    )
