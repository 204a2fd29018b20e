"""gyre simulate, plan, whatif: one clear line for what is wrong, JSON for what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gyre.cli.app import app
from gyre.cli.errors import CommandError

SPEC = {
    "schedule": {
        "executions_per_group": 2,
        "groups_per_step": 2,
        "num_steps": 4,
        "phi": 0.5,
        "mu": 2,
        "training_cells": 1,
    },
    "policies": {"async": {"phi": 1.0, "mu": 1}},
    "cells": {"nodes": [1, 1, 1], "executions_per_node": 4},
    "workload": {"median_h": 1.0, "group_sigma": 0.3},
    "training": {"node_hours_per_step": 1.0},
}
RUN = Path(__file__).parent.parent / "replay" / "runs" / "quickstart.jsonl.gz"


def gyre(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return path


def test_policies_are_compared_in_json(spec: Path) -> None:
    result = gyre(
        "simulate", str(spec), "--policy", "gyre", "--policy", "async", "--seeds", "2", "--json"
    )
    shown = json.loads(result.stdout)
    assert list(shown) == ["gyre", "async"]
    assert [run["seed"] for run in shown["gyre"]["runs"]] == [0, 1]
    assert shown["async"]["runs"][0]["expected_staleness"] == 1.0
    assert len(shown["gyre"]["runs"][0]["step_h"]) == 4


def test_equal_seeds_give_equal_figures(spec: Path) -> None:
    assert (
        gyre("simulate", str(spec), "--json").stdout == gyre("simulate", str(spec), "--json").stdout
    )


def test_a_recorded_run_may_be_the_workload(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    (tmp_path / "run.jsonl.gz").write_bytes(RUN.read_bytes())
    schedule = {"executions_per_group": 8, "groups_per_step": 6, "num_steps": 4, "tau_s": 0.5}
    cells = {"nodes": [1, 1, 1], "executions_per_node": 6}
    raw = {"schedule": schedule | {"mu": 2}, "cells": cells, "trace": "run.jsonl.gz"}
    path.write_text(yaml.safe_dump(raw))
    shown = json.loads(gyre("simulate", str(path), "--json").stdout)
    assert 0.01 < shown["gyre"]["total_h"] < 0.03


def test_a_plot_is_drawn(spec: Path, tmp_path: Path) -> None:
    result = gyre("simulate", str(spec), "--plot", str(tmp_path / "run.svg"))
    assert result.exit_code == 0
    assert "waterlevel w" in (tmp_path / "run.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of SPEC.yaml, --ablation, --speedups"),
        (("SPEC", "--ablation"), "give one of SPEC.yaml"),
        (("SPEC", "--policy", "best"), "--policy best: choose of gyre"),
        (("SPEC", "--plot", "run.txt"), "run.txt: the name of a plot ends with .svg"),
        (("SPEC", "--plot", "nowhere/run.svg"), "no such directory"),
        (("no.yaml",), "no.yaml: cannot be read"),
        (("--ablation", "--policy", "gyre"), "they belong to a SPEC.yaml"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(
    spec: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = gyre("simulate", *(str(spec) if word == "SPEC" else word for word in arguments))
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_fault_in_the_file_names_file_and_field(spec: Path) -> None:
    spec.write_text(yaml.safe_dump(SPEC | {"cells": {"nodes": [1], "executions_per_node": -1}}))
    error = gyre("simulate", str(spec)).exception
    assert str(error).startswith(f"{spec}: cells.executions_per_node: Input should be greater")


def test_a_recorded_run_is_simulated_within_a_tenth_of_its_time() -> None:
    result = gyre("whatif", "--file", str(RUN), "--set", "schedule.mu=1", "--json")
    shown = json.loads(result.stdout)
    assert abs(shown["calibration_error"]) < 0.1
    assert shown["changes"] == {"schedule.mu": 1}
    assert shown["changed"]["expected_staleness"] == 0.5


def test_what_if_refuses_what_is_no_change() -> None:
    error = gyre("whatif", "--file", str(RUN), "--set", "mu").exception
    assert str(error) == "--set mu: write NAME=VALUE, as schedule.mu=2"


def test_a_plan_may_be_made_from_a_recorded_run(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    schedule = {"executions_per_group": 8, "groups_per_step": 6, "num_steps": 6, "mu": 1}
    section = {"nodes": 4, "executions_per_node": 6, "staleness": 1.0, "min_nodes_per_cell": 2}
    path.write_text(yaml.safe_dump({"schedule": schedule | {"phi": 0.5}, "plan": section}))
    shown = json.loads(gyre("plan", str(path), "--file", str(RUN), "--json").stdout)
    assert shown["best"]["nodes"] == [2.0, 2.0]
    assert shown["best"]["expected_staleness"] == 1.0
    assert gyre("plan", str(path)).exception is not None
