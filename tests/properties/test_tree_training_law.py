"""Tree training through Megatron's model, in a process of its own: see megatron_checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.testkit.tiny_model import make_tiny_model

CHECKS = Path(__file__).parent / "megatron_checks" / "check_tree_training.py"


@pytest.mark.timeout(180)
def test_each_shared_prefix_is_computed_once_with_the_gradients_of_separate_rows(
    tmp_path: Path,
) -> None:
    # Made here, where transformers is imported for other tests too.
    model = make_tiny_model(tmp_path, hidden_size=32, head_dim=8, intermediate_size=48)
    without = [
        part for plugin in ("cacheprovider", "schemathesis") for part in ("-p", f"no:{plugin}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, str(CHECKS)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GYRE_CHECKED_MODEL": str(model)},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
