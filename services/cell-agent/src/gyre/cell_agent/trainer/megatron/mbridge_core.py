"""Everything this trainer takes from mbridge, after megatron_core.py's shim.

mbridge's packages import every family of models that they know, and the vision libraries of those.
That takes as long again as a trainer's start, so they stand here as mere directories.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from gyre.cell_agent.trainer.megatron import megatron_core


def _directories(package: str, *within: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    place = Path(spec.submodule_search_locations[0])
    for name, path in ((package, place), *((f"{package}.{one}", place / one) for one in within)):
        module = ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules.setdefault(name, module)


assert megatron_core
_directories("mbridge", "models")

from mbridge.models.qwen3 import Qwen3Bridge  # noqa: E402
from mbridge.models.qwen3moe import Qwen3MoEBridge  # noqa: E402

__all__ = ["Qwen3Bridge", "Qwen3MoEBridge"]
