"""Starts SGLang beside a torch without CUDA: run by its path, with SGLang's arguments.

torchvision, which SGLang imports, may be a CUDA build even so. Then none of its operators can be
loaded, but it states shapes for two of them as it is imported, which fails. No text model calls
them: declaring them is enough. Processes that SGLang spawns run this file again, as `__mp_main__`,
and so have them too.

A paused scheduler polls without a break, `--sleep-on-idle` or not. An engine is paused as long as
its cell trains, and here the trainer needs that core.
"""

from __future__ import annotations

import runpy
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

EACH_LOOK_WHILE_PAUSED = (
    "sglang.srt.managers.scheduler.Scheduler._record_scheduler_state_for_paused_engine"
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


def rest_while_paused() -> None:
    """Through SGLang's own hooks, which are put in place before a scheduler is made."""
    hooks: Any = import_module("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry.register(EACH_LOOK_WHILE_PAUSED, _until_a_message)


def _until_a_message(result: None, scheduler: Any) -> None:
    """Its sleeper is None where it was not told to sleep, or is not the one that receives."""
    if scheduler.idle_sleeper is not None:
        scheduler.idle_sleeper.maybe_sleep()


_operators = declare_operators()

if __name__ in ("__main__", "__mp_main__"):
    rest_while_paused()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
