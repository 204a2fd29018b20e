"""`gyre cells plan`: a table or JSON, and one line for an inventory that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.cli.app import app
from gyre.cli.errors import CommandError

runner = CliRunner()

INVENTORY = """
link_classes: [nvlink, rack]
nodes:
  - {name: a, gpus: 8, links: {nvlink: d0, rack: r0}}
  - {name: b, gpus: 3, links: {nvlink: d0, rack: r0}}
  - {name: c, gpus: 2, links: {rack: r0}}
  - {name: far, gpus: 2}
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.yaml"
    path.write_text(INVENTORY)
    return path


def test_cells_are_formed_by_the_tightest_link_that_holds_them(inventory: Path) -> None:
    arguments = ["cells", "plan", str(inventory), "--layout", "tensor=2,pipeline=3", "--json"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    found = [
        (cell["link"], cell["domain"], [(s["node"], s["gpus"], s["ranks"]) for s in cell["shares"]])
        for cell in plan["cells"]
    ]
    assert found == [
        ("node", "a", [("a", [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])]),
        ("rack", "r0", [("a", [6, 7], [0, 1]), ("b", [0, 1], [2, 3]), ("c", [0, 1], [4, 5])]),
    ]
    assert [(one["node"], one["gpus"]) for one in plan["unused"]] == [("b", [2]), ("far", [0, 1])]
    assert plan["layout"]["tensor"] == 2
    assert plan["cells"][1]["shares"][2]["settings"] == {
        "GYRE_CELL": 1,
        "GYRE_CELL_NODES": 3,
        "GYRE_NODE": 2,
        "GYRE_NODE_RANKS": 2,
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    # Beside the first cell on its node: not the GPUs that a process takes by itself.
    assert plan["cells"][1]["shares"][0]["settings"]["CUDA_VISIBLE_DEVICES"] == "6,7"


def test_the_table_names_each_cells_agents_and_what_is_left_over(inventory: Path) -> None:
    result = runner.invoke(app, ["cells", "plan", str(inventory), "--layout", "tensor=2"])
    assert result.exit_code == 0, result.output
    assert "node a" in result.output
    assert "GYRE_NODE_RANKS its number of ranks" in result.output
    assert "CUDA_VISIBLE_DEVICES its GPUs" in result.output
    assert "unused: b, GPU 2: tensor = 2 does not divide the node's 3" in result.output


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("tensor=16", "the largest has 8 GPUs; lower tensor"),
        ("tensor=8,pipeline=2", "no domain of nodes that are linked holds as many"),
        ("tensor", "write each size once"),
        ("tensor=2,tensor=4", "write each size once"),
        ("tensor=none", "--layout tensor=none: tensor:"),
        ("experts=2", "--layout experts=2: experts:"),
        ("sequence_parallel=true", "set tensor > 1"),
    ],
)
def test_a_layout_that_cannot_be_had_is_one_line(inventory: Path, layout: str, words: str) -> None:
    result = runner.invoke(app, ["cells", "plan", str(inventory), "--layout", layout])
    assert isinstance(result.exception, CommandError)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: []", "nodes:"),
        ("nodes: [{name: a}]", "nodes.0.gpus:"),
        ("nodes: [{name: a, gpus: 0}]", "nodes.0.gpus:"),
        ("nodes: [{name: a, gpus: 1}, {name: a, gpus: 1}]", "a is there twice"),
        ("nodes: [{name: a, gpus: 1, links: {rack: r}}]", "rack, which is not in link_classes"),
        ("{link_classes: [node], nodes: [{name: a, gpus: 1}]}", "always the tightest"),
        (
            "{link_classes: [nvlink, rack], nodes: [{name: a, gpus: 1, links: {nvlink: d}}]}",
            "node a: it is in nvlink d; name its rack",
        ),
        (
            """{link_classes: [nvlink, rack], nodes: [
            {name: a, gpus: 1, links: {nvlink: d, rack: r}},
            {name: b, gpus: 1, links: {nvlink: d, rack: s}}]}""",
            "lies within one of rack",
        ),
        ("nodes: {", "is no YAML"),
    ],
)
def test_an_inventory_at_fault_is_one_line_that_names_the_fault(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    result = runner.invoke(app, ["cells", "plan", str(path)])
    assert isinstance(result.exception, CommandError)
    assert str(path) in str(result.exception)
    assert words in str(result.exception)
