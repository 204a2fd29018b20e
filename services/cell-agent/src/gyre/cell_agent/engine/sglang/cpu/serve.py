"""Starts SGLang beside a torch without CUDA: run by its path, with SGLang's arguments.

torchvision, which SGLang imports, may be a CUDA build even so. Then none of its operators can be
loaded, but it states shapes for two of them as it is imported, which fails. No text model calls
them: declaring them is enough. Processes that SGLang spawns run this file again, as `__mp_main__`,
and so have them too.
"""

from __future__ import annotations

import runpy
from importlib.metadata import version
from typing import Any

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_operators() -> Any:
    """Without an implementation. They are there as long as what is returned; a torchvision that can
    load its own must not meet them."""
    library_of: Any = torch.library.Library  # untyped in torch
    library = library_of("torchvision", "FRAGMENT")
    if torch.version.cuda is None and "+cpu" not in version("torchvision"):
        for schema in OPERATORS:
            library.define(schema)
    return library


_operators = declare_operators()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
