"""Precision, devices and checkpoints of the trainer, in a process of its own: megatron_checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.testkit.tiny_model import make_tiny_model

CHECKS = [
    str(Path(__file__).parent / "megatron_checks" / name)
    for name in ("check_precision.py", "check_checkpoints.py", "check_device.py")
]
# A checkpoint of the tiny model takes about 0.8 MB.
DISK = "size=1300k"


def own_small_disk(directory: Path) -> list[str]:
    """What to start a program with, that finds a small file system of its own at `directory`; empty
    where this user may not mount one."""
    directory.mkdir()
    words = f"mount -t tmpfs -o {DISK} none {directory}"
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    prefix = [unshare, "-rm", "sh", "-c"]
    tried = subprocess.run([*prefix, words], capture_output=True, timeout=20)
    return [*prefix, words + ' && exec "$@"', "sh"] if tried.returncode == 0 else []


@pytest.mark.timeout(240)
def test_a_trainer_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    # Made here, where transformers is imported for other tests too.
    model = make_tiny_model(tmp_path / "model", hidden_size=32, head_dim=8, intermediate_size=48)
    disk = tmp_path / "disk"
    prefix = own_small_disk(disk)
    without = [
        part for plugin in ("cacheprovider", "schemathesis") for part in ("-p", f"no:{plugin}")
    ]
    done = subprocess.run(
        [
            *prefix,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "--show-capture=no",
            *without,
            *CHECKS,
        ],
        capture_output=True,
        text=True,
        timeout=230,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GYRE_CHECKED_MODEL": str(model),
            "GYRE_SMALL_DISK": str(disk) if prefix else "",
        },
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
    assert prefix == [] or "skipped" not in done.stdout.splitlines()[-1]
