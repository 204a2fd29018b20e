"""Gyre's own stack under its own supervisor, whose engines play a script (`harness_engine`).

As a program, the cell agent of such a stack: `python -m gyre.testkit.harness_stack`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gyre.cell_agent.engine import launch
from gyre.embedded.paths import StackPaths
from gyre.embedded.process import ProcessSpec
from gyre.embedded.stack import StackPlan, standard
from gyre.testkit.harness_script import VOCABULARY, make_script_model
from gyre.testkit.tiny_model import make_tiny_model

STACK = "gyre.testkit.harness_stack:plan"
CONTEXT_TOKENS = 16_384


def plan(paths: StackPaths, cells: int, environ: Mapping[str, str]) -> StackPlan:
    """The standard stack; a stack factory of `gyre.embedded.control.up`."""
    made = standard(paths, cells, environ)
    stages = tuple([_played(spec) for spec in stage] for stage in made.stages)
    return replace(made, stages=stages)


def _played(spec: ProcessSpec) -> ProcessSpec:
    if not spec.name.startswith("cell-"):
        return spec
    return replace(spec, argv=(sys.executable, "-m", "gyre.testkit.harness_stack"))


def make_model(directory: Path) -> Path:
    """A random policy with a script's tokenizer."""
    make_tiny_model(
        directory,
        seed=3,
        # A multiple of 64, as trainers want it, and room for the tokenizer's own.
        vocab_size=-(-VOCABULARY // 64) * 64,
        max_position_embeddings=CONTEXT_TOKENS,
    )
    return make_script_model(directory)


def one_step_job(model: Path, tasks: Path, harness: Mapping[str, Any]) -> dict[str, Any]:
    """As the API takes it: two executions of one task, one step."""
    return {
        "name": "play",
        "seed": 5,
        "model": {"path": str(model), "context_tokens": CONTEXT_TOKENS},
        "harness": {"timeout_s": 120, **harness},
        "tasks": {"train": str(tasks)},
        "rollout": {"max_new_tokens": 256, "call_timeout_s": 100},
        "cells": {"count": 2, "capacity": 2},
        "schedule": {
            "executions_per_group": 2,
            "groups_per_step": 1,
            "phi": 0,
            "mu": 1,
            "num_steps": 1,
            "rho_min": 1.0,
            "tau_s": 0.0,
        },
        "admission": {"row_tokens": CONTEXT_TOKENS, "tokens_per_micro_step": CONTEXT_TOKENS},
        "optimizer": {"lr": 1e-4},
    }


if __name__ == "__main__":
    # By its name, not by a string: the type checker sees when it is renamed.
    launch.LOCAL_MODULE = "gyre.testkit.harness_engine"
    runpy.run_module("gyre.cell_agent", run_name="__main__", alter_sys=True)
