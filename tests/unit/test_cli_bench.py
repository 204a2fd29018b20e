"""`gyre bench`: the figures as one table, exit status by the targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.cli.app import app
from gyre.cli.errors import CommandError

runner = CliRunner()


def _write(directory: Path, name: str, *, ok: bool) -> None:
    result = {
        "name": name,
        "figures": {"events_per_s": 81234.567, "num_events": 100000},
        "targets": {"events_per_s": ">= 70000"},
        "ok": ok,
    }
    (directory / f"{name}.json").write_text(json.dumps(result))


def test_every_figure_is_shown_with_its_target(tmp_path: Path) -> None:
    _write(tmp_path, "replay", ok=True)
    _write(tmp_path, "packing", ok=True)
    result = runner.invoke(app, ["bench", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.index("packing") < result.output.index("replay")
    for words in ("events_per_s", "8.123e+04", ">= 70000", "num_events", "100000", "yes"):
        assert words in result.output


def test_a_missed_target_is_exit_status_1(tmp_path: Path) -> None:
    _write(tmp_path, "replay", ok=True)
    _write(tmp_path, "packing", ok=False)
    result = runner.invoke(app, ["bench", str(tmp_path)])
    assert result.exit_code == 1
    assert "NO" in result.output


def test_no_figures_say_how_to_get_them(tmp_path: Path) -> None:
    result = runner.invoke(app, ["bench", str(tmp_path)])
    assert isinstance(result.exception, CommandError)
    assert "run `make bench` first" in str(result.exception)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ok": true}', '{"ok": 1, "figures": []}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    result = runner.invoke(app, ["bench", str(tmp_path)])
    assert isinstance(result.exception, CommandError)
    assert "odd.json" in str(result.exception)
