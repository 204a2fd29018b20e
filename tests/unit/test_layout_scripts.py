"""The scripts that people and CI start: set-up and containment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from gyre.testkit.modules import load_module

ROOT = Path(__file__).parent.parent.parent
CONTAINED = ROOT / "scripts" / "contained.py"


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return load_module(ROOT / "scripts" / "setup.py", "gyre_setup")


def contained(limit_s: float, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CONTAINED), str(limit_s), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_contained_command_keeps_its_status_and_output() -> None:
    result = contained(30, "sh", "-c", "echo words; exit 7")
    assert (result.returncode, result.stdout) == (7, "words\n")


def test_a_contained_command_leaves_no_daemon_behind(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "p = subprocess.Popen(['sleep', '300'], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(p.pid)\n"
        "import os; sys.stdout.flush(); os._exit(0)\n"
    )
    result = contained(30, sys.executable, "-c", script)
    assert result.returncode == 0
    assert not psutil.pid_exists(int(result.stdout))
    assert "ended 1 processes" in result.stderr


def test_a_contained_command_ends_at_its_limit() -> None:
    started = time.monotonic()
    result = contained(0.5, "sleep", "300")
    assert result.returncode == 124
    assert time.monotonic() - started < 30


def test_a_daemon_that_ended_is_no_zombie_to_what_runs_contained() -> None:
    script = (
        "import os, subprocess, sys, time\n"
        "pid = int(subprocess.run(['sh', '-c', 'sleep 0.1 >&2 & echo $!'],"
        " stdout=subprocess.PIPE, check=True).stdout)\n"
        "deadline = time.monotonic() + 20\n"
        "while os.path.exists(f'/proc/{pid}') and time.monotonic() < deadline: time.sleep(0.05)\n"
        "sys.exit(os.path.exists(f'/proc/{pid}'))\n"
    )
    assert contained(30, sys.executable, "-c", script).returncode == 0


def test_an_unfinished_environment_is_made_anew_and_a_finished_one_is_kept(
    setup_script: ModuleType, tmp_path: Path
) -> None:
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("# nothing but the interpreter\n")
    directory = tmp_path / "a cache" / f"env-{setup_script.fingerprint([wanted])}"
    directory.mkdir(parents=True)
    note = directory / "note"
    note.write_text("left by a run that was killed")
    made = setup_script.cached_environment(directory.parent, "env", [wanted])
    assert made == directory
    assert not note.exists()
    result = subprocess.run([made / "bin" / "python", "-c", "print(1)"], capture_output=True)
    assert result.stdout == b"1\n"
    note.write_text("of the finished one")
    assert setup_script.cached_environment(directory.parent, "env", [wanted]) == made
    assert note.exists()


def test_the_fingerprint_changes_with_the_requirements(
    setup_script: ModuleType, tmp_path: Path
) -> None:
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("a==1\n")
    before = setup_script.fingerprint([wanted])
    assert setup_script.fingerprint([wanted]) == before
    wanted.write_text("a==2\n")
    assert setup_script.fingerprint([wanted]) != before


def test_what_pip_could_not_do_is_one_line(setup_script: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "pip.log"
    command = [sys.executable, "-c", "print('ERROR: no such thing'); raise SystemExit(1)"]
    with pytest.raises(setup_script.SetupError, match=r"pip failed: ERROR: no such thing"):
        setup_script.run_pip(command, log)


@pytest.mark.skipif(os.geteuid() != 0, reason="only under root Postgres runs as somebody else")
def test_a_cache_that_others_may_not_enter_is_refused_under_root(
    setup_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GYRE_DATABASE_URL", raising=False)
    tmp_path.chmod(0o700)
    with pytest.raises(setup_script.SetupError, match="set GYRE_CACHE to a world-readable place"):
        setup_script.cache_directory()
