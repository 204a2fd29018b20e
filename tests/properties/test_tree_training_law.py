"""Tree training through Megatron's model, in a process of its own: see megatron_checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "megatron_checks" / "check_tree_training.py"


@pytest.mark.timeout(180)
def test_each_shared_prefix_is_computed_once_with_the_gradients_of_separate_rows() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
