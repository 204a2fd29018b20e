"""gyre engines: what is installed is listed, what is asked for comes from the checkout's pins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.cli import engines_commands
from gyre.cli.app import app
from gyre.cli.errors import CommandError

RUNNER = CliRunner()


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment notes what was installed on demand; nothing is yet."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path / engines_commands.NOTES


def test_engines_are_listed_with_how_to_install_what_is_not_there(
    notes: Path, tmp_path: Path
) -> None:
    before = RUNNER.invoke(app, ["engines", "ls"], env={"COLUMNS": "200"}).output
    assert "not installed: gyre engines install sglang" in before
    python = tmp_path / "p"
    notes.write_text(json.dumps({engines_commands.KEY: str(python)}))
    gone = RUNNER.invoke(app, ["engines", "ls"], env={"COLUMNS": "200"}).output
    python.touch()
    there = RUNNER.invoke(app, ["engines", "ls"], env={"COLUMNS": "200"}).output
    assert "gone: gyre engines install sglang" in gone
    assert "installed" in there
    assert "gyre engines install" not in there


def test_notes_that_cannot_be_read_are_one_line(notes: Path) -> None:
    notes.write_text("{")
    result = RUNNER.invoke(app, ["engines", "ls"])
    assert isinstance(result.exception, CommandError)
    assert "run make setup" in str(result.exception)


def test_an_installation_passes_on_what_was_asked_and_fails_as_it_does(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, told = tmp_path / "sglang.py", tmp_path / "told"
    script.write_text(f"import sys; open({str(told)!r}, 'w').write(' '.join(sys.argv[1:]))")
    monkeypatch.setattr(engines_commands, "SCRIPT", script)
    assert RUNNER.invoke(app, ["engines", "install", "sglang", "--python", "/p"]).exit_code == 0
    assert told.read_text() == f"--notes {notes} --python /p"
    script.write_text("raise SystemExit(1)")
    failed = RUNNER.invoke(app, ["engines", "install", "sglang"])
    assert str(failed.exception) == "sglang is not installed"
    script.unlink()
    nowhere = RUNNER.invoke(app, ["engines", "install", "sglang"])
    assert "installed from a checkout" in str(nowhere.exception)


def test_an_engine_that_nobody_knows_is_refused() -> None:
    result = RUNNER.invoke(app, ["engines", "install", "vllm"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("python", "says"),
    [("/nowhere/python", "cannot be run"), (sys.executable, "cannot import it")],
)
def test_a_python_without_sglang_is_not_taken(python: str, says: str) -> None:
    command = [sys.executable, str(engines_commands.SCRIPT), "--python", python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
