"""`make test-gpu`: one line where there is no GPU, a failure where there is one and nothing ran."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_gpu.py"


def test_without_a_gpu_it_is_skipped_in_one_line() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "test-gpu: skipped, CUDA_VISIBLE_DEVICES hides every GPU\n"


def test_a_gpu_on_which_every_test_was_skipped_is_a_failure_that_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where torch is a build for CPUs and SGLang is not installed."""
    spec = importlib.util.spec_from_file_location("test_gpu_script_itself", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "reason_to_skip", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["test_gpu.py", "-q", "-p", "no:cacheprovider"])
    assert script.main() == 1
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("test-gpu: nothing was run on the GPU that is here: ")
    assert said.endswith("no GPU is visible here")
