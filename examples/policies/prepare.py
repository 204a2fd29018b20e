"""Makes what the comparison names: a tiny random model, and tasks whose length is heavy-tailed.

    python examples/policies/prepare.py --out DIR [--seed 5] [--num-tasks 48]

A task says how many turns its agent takes. The turns are the quantiles of a lognormal, capped, in a
seeded order: every run has the same lengths, and a block of B tasks, one step's, is as uneven as
chance makes it. All N executions of a group share the task, so lengths are correlated in a group.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from gyre.testkit.tiny_model import make_tiny_model

# Log-normal in turns: half the tasks take MEDIAN_TURNS or fewer, few take very many.
MEDIAN_TURNS = 1.9
SIGMA = 2.0
MAX_TURNS = 36
CONTEXT_TOKENS = 4096
# Of the tasks' order: one where totals depend little on a run's chances (README.md).
SEED = 5

TEST_SH = """#!/bin/sh
# By the transcript's length, in [0, 1): all executions of a group differ, so that all are trained.
mkdir -p "$LOGS_DIR/verifier"
size=$(wc -c < said.txt)
printf '0.%02d\n' $((size % 97)) > "$LOGS_DIR/verifier/reward.txt"
"""


def turns_of_tasks(num_tasks: int, seed: int) -> list[int]:
    """Turns of task 0, 1, ...: lognormal quantiles, shuffled."""
    normal = statistics.NormalDist()
    quantiles = [normal.inv_cdf((place + 0.5) / num_tasks) for place in range(num_tasks)]
    turns = [
        min(MAX_TURNS, max(1, round(MEDIAN_TURNS * 2.718281828 ** (SIGMA * quantile))))
        for quantile in quantiles
    ]
    random.Random(seed).shuffle(turns)
    return turns


def write_task(directory: Path, num_turns: int) -> None:
    (directory / "tests").mkdir(parents=True)
    (directory / "environment").mkdir()
    (directory / "task.toml").write_text('version = "1.0"\n', encoding="utf-8")
    (directory / "instruction.md").write_text(f"turns {num_turns}\n", encoding="utf-8")
    script = directory / "tests" / "test.sh"
    script.write_text(TEST_SH, encoding="utf-8")
    script.chmod(0o755)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED, help="of the tasks' order")
    parser.add_argument("--num-tasks", type=int, default=48)
    options = parser.parse_args(arguments)
    turns = turns_of_tasks(options.num_tasks, options.seed)
    shutil.rmtree(options.out, ignore_errors=True)
    for number, num_turns in enumerate(turns):
        write_task(options.out / "tasks" / f"task-{number:03d}", num_turns)
    (options.out / "turns.json").write_text(json.dumps(turns) + "\n", encoding="utf-8")
    make_tiny_model(options.out / "model", seed=3, max_position_embeddings=CONTEXT_TOKENS)


if __name__ == "__main__":
    main()
