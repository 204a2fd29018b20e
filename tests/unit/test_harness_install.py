"""The script that installs agent programs on demand."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
# Stands in for npm, which would load hundreds of megabytes: makes what a lock file would bring.
FAKE_NPM = """#!/bin/sh
echo "$*" >> "$NPM_CALLS"
[ -f package-lock.json ] || exit 3
[ -z "$NPM_FAILS" ] || { echo "npm error no such thing"; exit 1; }
mkdir -p node_modules/@openai/codex-here/vendor/here/bin
printf '#!/bin/sh\\necho codex 1' > node_modules/@openai/codex-here/vendor/here/bin/codex
chmod +x node_modules/@openai/codex-here/vendor/here/bin/codex
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("setup", "harness"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("gyre_harness", SCRIPTS / "harness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake npm notes how it is called."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(FAKE_NPM)
    program.chmod(0o755)
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NPM_CALLS", str(calls))
    return calls


def test_a_program_is_installed_once_by_its_lock_file_and_no_script_is_run(
    script: ModuleType, npm: Path, tmp_path: Path
) -> None:
    program = script.install(tmp_path, "codex")
    assert script.install(tmp_path, "codex") == program
    assert npm.read_text().splitlines() == ["ci --ignore-scripts --no-audit --no-fund"]
    assert program.name == "codex"


def test_an_unfinished_install_is_made_anew_and_a_failed_one_is_one_line(
    script: ModuleType, npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_FAILS", "1")
    with pytest.raises(script.SetupError, match="npm failed: npm error no such thing"):
        script.install(tmp_path, "codex")
    monkeypatch.setenv("NPM_FAILS", "")
    assert script.install(tmp_path, "codex").exists()
    assert len(npm.read_text().splitlines()) == 2


def test_an_installed_program_is_named_to_the_runner_beside_the_others(
    script: ModuleType, npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "VENV", tmp_path)
    (tmp_path / "gyre-env.json").write_text('{"harness_llm_python": "/llm"}')
    program = script.install(tmp_path, "codex")
    script.register("codex", program)
    known = json.loads((tmp_path / "gyre-env.json").read_text())
    assert known == {"harness_llm_python": "/llm", "harness_codex_program": str(program)}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exit 1", "does not start"),
        ("#!/nowhere/sh\n", "No such file"),
    ],
)
def test_a_program_that_does_not_start_is_told_to_nobody_and_is_one_line(
    script: ModuleType,
    npm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    words: str,
) -> None:
    monkeypatch.setattr(script, "VENV", tmp_path)
    monkeypatch.setattr(script, "cache_directory", lambda: tmp_path)
    installed = script.install(tmp_path, "codex")
    installed.write_text(program if program.startswith("#!") else f"#!/bin/sh\n{program}")
    capsys.readouterr()
    assert script.main(["codex"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("harness: codex: ")
    assert words in line
    assert not (tmp_path / "gyre-env.json").exists()


def test_the_full_suite_installs_every_program_and_runs_the_gpus_tests_by_themselves(
    script: ModuleType,
) -> None:
    """What `make test-full` would do, as make itself tells it."""
    told = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "test-full"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    [at] = [index for index, line in enumerate(told) if "scripts/harness.py" in line]
    named = told[at].split("scripts/harness.py")[1].split()
    assert sorted(named) == sorted([*script.NPM_PROGRAMS, *script.PIP_HARNESSES])
    suite, on_gpu = told[at + 1 :]
    assert "-m pytest" in suite
    assert "not gpu" in suite
    assert "scripts/test_gpu.py" in on_gpu


def test_an_unknown_name_is_one_line_that_lists_the_known_ones() -> None:
    command = [sys.executable, str(SCRIPTS / "harness.py"), "nope"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    known = "claude-code, codex, mini-swe-agent"
    assert result.stderr == f"harness: name one or more of {known}\n"
