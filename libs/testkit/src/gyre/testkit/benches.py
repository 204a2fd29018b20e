"""What the benchmarks in tests/bench share: a job's long life, and the form of what they report."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path

from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model

OUT = Path("out/bench")


def lived_job(*, num_steps: int, phi: float) -> World:
    """8 cells of 256 slots, 512 executions a step, heavy-tailed durations; the same at each call.

    Seconds of the executions' lives are lognormal, median 148 s; they are virtual.
    """
    source = random.Random(0)
    spec = job_spec(
        cells=8,
        capacity=256,
        heldout=False,
        groups_per_step=32,
        executions_per_group=16,
        phi=phi,
        mu=2,
        num_steps=num_steps,
    )
    world = World(spec, lambda _: source.lognormvariate(5.0, 0.8))
    world.run()
    return world


def make_bench_model(directory: Path, *, max_position_embeddings: int = 2048) -> Path:
    """Large enough that an engine's time is its arithmetic's: 128 wide, 565 tokens."""
    return make_tiny_model(
        directory,
        hidden_size=128,
        intermediate_size=384,
        head_dim=32,
        vocab_size=565,
        max_position_embeddings=max_position_embeddings,
    )


def write_report(
    name: str, figures: Mapping[str, float], targets: Mapping[str, float], *, ok: bool
) -> None:
    """As `gyre bench` reads it, below the working directory; and on stdout.

    ok: all targets are met. A figure without a target is only told.
    """
    report = {"name": name, "figures": figures, "targets": targets, "ok": ok}
    text = json.dumps(report, indent=1)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
