#!/usr/bin/env python3
"""Runs what needs a GPU (tests/gpu), in less than eight minutes; one line where there is none.

scripts/test_gpu.py [PYTEST ARGUMENT ...]     exit status: pytest's; 0 without a GPU; 1 where there
                                              is one and every test was skipped

A plain SGLang and its memory saver; a trainer's step against the CPU's; a role switch of both, with
a publication of what was learnt; the compiled attention, pinned parking, and NCCL, between two
cells where there are two GPUs, with weights pulled by it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
LIMIT_S = 480
NVIDIA = Path("/dev/nvidiactl")


def main() -> int:
    why = reason_to_skip()
    if why is not None:
        print(f"test-gpu: skipped, {why}")
        return 0
    contained = [sys.executable, str(ROOT / "scripts" / "contained.py"), str(LIMIT_S)]
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as directory:
        outcome = Path(directory) / "outcome.xml"
        status = subprocess.call([*contained, *tests, f"--junit-xml={outcome}"], cwd=ROOT)
        if status != 0:
            return status
        num_run, skips = read_outcome(outcome)
    if num_run == 0:
        reasons = "; ".join(skips) or "there was none to run"
        print(f"test-gpu: nothing was run on the GPU that is here: {reasons}", file=sys.stderr)
        return 1
    return 0


def read_outcome(outcome: Path) -> tuple[int, list[str]]:
    """Of a JUnit report: how many tests were run, and why others were not, each reason once."""
    cases = list(ET.parse(outcome).iter("testcase"))  # noqa: S314  (pytest wrote it just now)
    skips = [skipped for case in cases if (skipped := case.find("skipped")) is not None]
    return len(cases) - len(skips), sorted({skipped.get("message", "") for skipped in skips})


def reason_to_skip() -> str | None:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return None if NVIDIA.exists() else f"there is no GPU here (no {NVIDIA})"


if __name__ == "__main__":
    sys.exit(main())
