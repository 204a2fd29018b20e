"""Cells from an inventory: no GPU twice, tensor groups in a node, the tightest link that holds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gyre.contracts.inventory import NODE, Inventory
from gyre.contracts.training_job import LayoutSection
from gyre.core.cell_plan import CellPlan, LayoutDoesNotFit, plan_cells, spread_ranks

CLASSES = ("nvlink", "rack", "zone")


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Nested domains: an nvlink domain's name holds its rack's, a rack's its zone's."""
    nodes = []
    for number in range(draw(st.integers(1, 9))):
        places = [draw(st.integers(0, 2)) for _ in CLASSES]
        path = [".".join(map(str, places[:depth])) for depth in (3, 2, 1)]
        known = draw(st.integers(0, len(CLASSES)))
        links = dict(zip(CLASSES[known:], path[known:], strict=True))
        nodes.append({"name": f"n{number}", "gpus": draw(st.integers(1, 9)), "links": links})
    return Inventory.model_validate({"link_classes": CLASSES, "nodes": nodes})


layouts = st.builds(
    LayoutSection,
    tensor=st.integers(1, 4),
    pipeline=st.integers(1, 3),
    context=st.integers(1, 2),
    data=st.integers(1, 2),
)


def planned(inventory: Inventory, layout: LayoutSection) -> CellPlan:
    try:
        return plan_cells(inventory, layout)
    except LayoutDoesNotFit:
        assume(False)
        raise


def domains_of(inventory: Inventory) -> dict[tuple[str, str], set[str]]:
    """(link class, domain) -> its nodes' names."""
    found: dict[tuple[str, str], set[str]] = {}
    for node in inventory.nodes:
        found[NODE, node.name] = {node.name}
        for link, domain in node.links.items():
            found.setdefault((link, domain), set()).add(node.name)
    return found


@given(inventories(), layouts)
def test_each_gpu_is_in_one_cell_or_named_as_unused(
    inventory: Inventory, layout: LayoutSection
) -> None:
    plan = planned(inventory, layout)
    used = Counter(
        (share.node, gpu) for cell in plan.cells for share in cell.shares for gpu in share.gpus
    )
    used.update((one.node, gpu) for one in plan.unused for gpu in one.gpus)
    assert used == Counter((node.name, gpu) for node in inventory.nodes for gpu in range(node.gpus))


@given(inventories(), layouts)
def test_a_cell_has_every_rank_once_and_a_tensor_group_stays_in_its_node(
    inventory: Inventory, layout: LayoutSection
) -> None:
    for cell in planned(inventory, layout).cells:
        home = {rank: share.node for share in cell.shares for rank in share.ranks}
        assert sorted(home) == list(range(layout.num_ranks))
        assert [share.agent for share in cell.shares] == list(range(len(cell.shares)))
        assert len({share.node for share in cell.shares}) == len(cell.shares)
        assert all(len(share.gpus) == len(share.ranks) for share in cell.shares)
        for first in range(0, layout.num_ranks, layout.tensor):
            assert len({home[rank] for rank in range(first, first + layout.tensor)}) == 1


@given(inventories(), layouts)
def test_every_domain_holds_as_many_cells_as_fit_in_it(
    inventory: Inventory, layout: LayoutSection
) -> None:
    """So a cell is spread over a looser class only where no tighter domain could hold it."""
    plan = planned(inventory, layout)
    gpus = {node.name: node.gpus for node in inventory.nodes}
    for nodes in domains_of(inventory).values():
        inside = [
            cell for cell in plan.cells if nodes.issuperset(share.node for share in cell.shares)
        ]
        groups = sum(gpus[node] // layout.tensor for node in nodes)
        assert len(inside) == groups // (layout.num_ranks // layout.tensor)


@given(inventories(), layouts)
def test_the_named_domain_holds_the_cell_and_no_tighter_one_does(
    inventory: Inventory, layout: LayoutSection
) -> None:
    domains = domains_of(inventory)
    order = (NODE, *CLASSES)
    for cell in planned(inventory, layout).cells:
        nodes = {share.node for share in cell.shares}
        holding = [order.index(link) for (link, _), inside in domains.items() if nodes <= inside]
        assert nodes <= domains[cell.link, cell.domain]
        assert order.index(cell.link) == min(holding)


@given(inventories(), layouts)
def test_the_same_inventory_gives_the_same_plan(
    inventory: Inventory, layout: LayoutSection
) -> None:
    again = Inventory.model_validate(inventory.model_dump())
    assert planned(inventory, layout) == planned(again, layout)


@given(inventories(), layouts)
def test_a_layout_is_refused_only_where_no_domain_holds_a_cell(
    inventory: Inventory, layout: LayoutSection
) -> None:
    gpus = {node.name: node.gpus for node in inventory.nodes}
    most = max(
        sum(gpus[node] // layout.tensor for node in nodes)
        for nodes in domains_of(inventory).values()
    )
    if most * layout.tensor < layout.num_ranks:
        with pytest.raises(LayoutDoesNotFit):
            plan_cells(inventory, layout)
    else:
        assert plan_cells(inventory, layout).cells


@given(layouts, st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=4))
def test_ranks_are_spread_over_a_cells_nodes_in_order_and_tensor_groups_whole(
    layout: LayoutSection, limits: list[int | None]
) -> None:
    try:
        homes = spread_ranks(layout, limits)
    except LayoutDoesNotFit:
        room = [limit // layout.tensor * layout.tensor for limit in limits if limit is not None]
        assert len(room) == len(limits)
        assert sum(room) < layout.num_ranks
        return
    assert len(homes) == layout.num_ranks
    assert list(homes) == sorted(homes)
    for first in range(0, layout.num_ranks, layout.tensor):
        assert len(set(homes[first : first + layout.tensor])) == 1
    for node, limit in enumerate(limits):
        assert limit is None or homes.count(node) <= limit


@given(inventories(), layouts)
def test_agents_that_know_their_share_spread_the_ranks_as_planned(
    inventory: Inventory, layout: LayoutSection
) -> None:
    for cell in planned(inventory, layout).cells:
        homes = spread_ranks(layout, [len(share.ranks) for share in cell.shares])
        planned_homes = {rank: share.agent for share in cell.shares for rank in share.ranks}
        assert dict(enumerate(homes)) == planned_homes


@given(layouts, st.integers(1, 4))
def test_without_limits_no_node_has_more_than_one_group_above_another(
    layout: LayoutSection, num_nodes: int
) -> None:
    homes = spread_ranks(layout, [None] * num_nodes)
    counts = [homes.count(node) for node in range(num_nodes)]
    assert max(counts) - min(counts) <= layout.tensor


@pytest.mark.parametrize(
    ("limits", "counts"),
    [((None, 1), (3, 1)), ((None, 1, None), (2, 1, 1)), ((None, 0, None), (2, 0, 2))],
)
def test_what_limits_of_later_nodes_leave_over_goes_to_nodes_without_one(
    limits: tuple[int | None, ...], counts: tuple[int, ...]
) -> None:
    homes = spread_ranks(LayoutSection(data=4), limits)
    assert tuple(homes.count(node) for node in range(len(limits))) == counts
