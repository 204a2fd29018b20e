"""gyre cells plan: which nodes and GPUs make up which cell."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from gyre.cli.errors import CommandError
from gyre.cli.simulate_commands import load_mapping
from gyre.contracts.inventory import Inventory
from gyre.contracts.training_job import LayoutSection
from gyre.core.cell_plan import CellPlan, LayoutDoesNotFit, NodeShare, PlannedCell, plan_cells

console = Console()

_HOW_TO_START = (
    "Each agent: GYRE_CELL the cell, GYRE_CELL_NODES its number of agents, GYRE_NODE the agent, "
    "GYRE_NODE_RANKS its number of ranks, CUDA_VISIBLE_DEVICES its GPUs (--json gives them)."
)

Layout = Annotated[
    str, typer.Option(help="A cell's parallel layout, as in a job file: tensor=2,pipeline=2.")
]


def plan_command(
    inventory: Annotated[
        Path, typer.Argument(help="YAML: link_classes, tightest first, and nodes.")
    ],
    layout: Layout = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Form cells from a node inventory: each in the tightest link class that holds it, tensor
    groups inside a node. Says which GPUs are left over, and why."""
    try:
        nodes = Inventory.model_validate(load_mapping(inventory))
    except ValidationError as error:
        raise CommandError(f"{inventory}: {_first_fault(error)}") from error
    try:
        plan = plan_cells(nodes, _parse_layout(layout))
    except LayoutDoesNotFit as error:
        raise CommandError(f"{inventory}: {error}") from error
    if as_json:
        typer.echo(json.dumps(_as_json(plan), indent=1))
        return
    _show(plan)


def _parse_layout(text: str) -> LayoutSection:
    """Raises CommandError."""
    values: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, found, value = piece.partition("=")
        if not found or name in values:
            raise CommandError(f"--layout {text}: write each size once, as in tensor=2,pipeline=2")
        values[name] = value
    try:
        return LayoutSection.model_validate(values)
    except ValidationError as error:
        raise CommandError(f"--layout {text}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    words = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {words}" if place else words


def _show(plan: CellPlan) -> None:
    table = Table("cell", "within", "agent", "node", "GPUs", "ranks")
    for cell in plan.cells:
        for share in cell.shares:
            is_first = share.agent == 0
            table.add_row(
                str(cell.cell) if is_first else "",
                f"{cell.link} {cell.domain}" if is_first else "",
                str(share.agent),
                share.node,
                _numbers(share.gpus),
                _numbers(share.ranks),
            )
    console.print(table)
    console.print(_HOW_TO_START, highlight=False, soft_wrap=True)
    for one in plan.unused:
        console.print(
            f"unused: {one.node}, GPU {_numbers(one.gpus)}: {one.reason}", highlight=False
        )


def _numbers(values: tuple[int, ...]) -> str:
    """0-3,6: ascending, runs shortened."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _as_json(plan: CellPlan) -> dict[str, Any]:
    return {
        "layout": plan.layout.model_dump(),
        "cells": [
            asdict(cell) | {"shares": [_share_as_json(cell, share) for share in cell.shares]}
            for cell in plan.cells
        ],
        "unused": [asdict(one) for one in plan.unused],
    }


def _share_as_json(cell: PlannedCell, share: NodeShare) -> dict[str, Any]:
    """settings: of its agent's environment, by which the cell's agents spread its ranks so
    and two cells on one node have each its own GPUs."""
    settings: dict[str, int | str] = {
        "GYRE_CELL": cell.cell,
        "GYRE_CELL_NODES": len(cell.shares),
        "GYRE_NODE": share.agent,
        "GYRE_NODE_RANKS": len(share.ranks),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, share.gpus)),
    }
    return {**asdict(share), "settings": settings}
