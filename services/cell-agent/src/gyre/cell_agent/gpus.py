"""Whether a process has a GPU, before anything of torch is imported."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Its numbers or names, with commas; empty hides all, and without it all are seen."""

_DEVICES = Path("/dev")
_DRIVER = _DEVICES / "nvidiactl"


def sees_gpu(environ: Mapping[str, str]) -> bool:
    return environ.get(VISIBLE) != "" and _DRIVER.exists()


def trains_on_gpu(environ: Mapping[str, str]) -> bool:
    """What a trainer chooses that is started with this environment (`trainer/device.py`)."""
    return sees_gpu(environ) and torch_is_for_gpus()


def rank_limit(most: int | None, environ: Mapping[str, str]) -> int | None:
    """Trainer ranks that this node takes, None for any number. most: by its settings. Each has a
    GPU of its own where there are any."""
    gpus, named = None, environ.get(VISIBLE)
    if named:
        gpus = len(named.split(","))
    elif trains_on_gpu(environ):
        gpus = len(list(_DEVICES.glob("nvidia[0-9]*")))
    limits = [limit for limit in (most, gpus) if limit is not None]
    return min(limits, default=None)


def torch_is_for_gpus() -> bool:
    """Of the torch that trainers import, without the seconds that importing it takes."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    version = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    return version["cuda"] is not None
