"""What one rank of a cell cannot do, all refuse alike: else they would be out of step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.testkit.agreeing_ranks import NUM_RANKS


@pytest.mark.timeout(120)
def test_what_one_rank_cannot_have_or_write_all_refuse_alike(tmp_path: Path) -> None:
    out = tmp_path / "told"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gyre.testkit.agreeing_ranks", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for rank in range(NUM_RANKS):
        told = json.loads(Path(f"{out}.{rank}.json").read_text())
        assert told == ["body_unavailable", "none", "checkpoint_error"]
