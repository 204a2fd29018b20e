"""Whether a process has a GPU, before anything of torch is imported."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Its numbers or names, with commas; those behind an empty one or -1 are hidden, and without it all
are seen."""

_DEVICES = Path("/dev")
_DRIVER = _DEVICES / "nvidiactl"


def named_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Those that may be seen. None: all."""
    named = environ.get(VISIBLE)
    if named is None:
        return None
    return list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, named.split(","))))


def sees_gpu(environ: Mapping[str, str]) -> bool:
    return named_gpus(environ) != [] and _DRIVER.exists()


def trains_on_gpu(environ: Mapping[str, str]) -> bool:
    """What a trainer chooses that is started with this environment (`trainer/device.py`)."""
    return sees_gpu(environ) and torch_is_for_gpus()


def rank_limit(most: int | None, environ: Mapping[str, str]) -> int | None:
    """Trainer ranks that this node takes, None for any number. most: by its settings. Where they
    train on GPUs each has one of its own."""
    if not trains_on_gpu(environ):
        return most
    named = named_gpus(environ)
    gpus = len(list(_DEVICES.glob("nvidia[0-9]*"))) if named is None else len(named)
    return gpus if most is None else min(most, gpus)


def torch_is_for_gpus() -> bool:
    """Of the torch that trainers import, without the seconds that importing it takes."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    version = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    return version["cuda"] is not None
