"""Seeded generator of the example's tasks, in Harbor's task format.

    python examples/smollm2/tasks.py --out DIR [--seed N] [--num-train 24] [--num-heldout 24]

Write one short sentence with three given words. The reward is the fraction of them that stand in
the answer, halved where it has more than MAX_WORDS words: a model of 135 million parameters gets
some of it by itself, and seldom all. Held out are words: no training task has any of them.

The agent program (`ask.py`) lies in each task's workspace.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

AGENT = Path(__file__).resolve().parent / "ask.py"
NUM_WORDS = 3
MAX_WORDS = 20
TRAIN = tuple(
    """
frog lamp tree moon star fish bird cake rain snow wolf bear lion corn rice salt gold iron wood
sand rock leaf seed boat road hill lake wind fire milk kite drum bell shoe door roof desk book
""".split()  # noqa: SIM905 - quoted one by one they fill a screen
)
HELDOUT = tuple("ship coat fork harp pond root pear wall ring cup".split())  # noqa: SIM905

TEST_SH = f"""#!/bin/sh
# Reward = words found / words asked for, halved where the answer is long. Runs in the workspace.
found=0
total=0
while read -r word; do
    total=$((total + 1))
    if grep -qiw -- "$word" answer.txt; then
        found=$((found + 1))
    fi
done < "$TESTS_DIR/words.txt"
long=$(( $(wc -w < answer.txt) > {MAX_WORDS} ))
mkdir -p "$LOGS_DIR/verifier"
awk "BEGIN {{ printf \\"%.4f\\\\n\\", $found / $total / (1 + $long) }}" \\
    > "$LOGS_DIR/verifier/reward.txt"
"""


def draw_words(rng: random.Random, words: Sequence[str], num_tasks: int) -> list[tuple[str, ...]]:
    """Distinct triples."""
    drawn: dict[tuple[str, ...], None] = {}
    while len(drawn) < num_tasks:
        drawn[tuple(sorted(rng.sample(words, NUM_WORDS)))] = None
    return list(drawn)


def write_task(directory: Path, words: Sequence[str]) -> None:
    """Replace one task directory."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "environment").mkdir(parents=True)
    (directory / "tests").mkdir()
    (directory / "task.toml").write_text('version = "1.0"\n', encoding="utf-8")
    (directory / "instruction.md").write_text(" ".join(words) + "\n", encoding="utf-8")
    shutil.copy(AGENT, directory / "environment" / AGENT.name)
    lines = "".join(f"{word}\n" for word in words)
    (directory / "tests" / "words.txt").write_text(lines, encoding="utf-8")
    script = directory / "tests" / "test.sh"
    script.write_text(TEST_SH, encoding="utf-8")
    script.chmod(0o755)


def write_split(root: Path, words: Sequence[str], seed: int, num_tasks: int) -> None:
    """Replace the directory by `num_tasks` tasks whose names sort in the order of dispatch."""
    shutil.rmtree(root, ignore_errors=True)
    drawn = draw_words(random.Random(f"{root.name} {seed}"), words, num_tasks)
    for number, triple in enumerate(drawn):
        write_task(root / f"{root.name}-{number:03d}", triple)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the example's task directories.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-train", type=int, default=24)
    parser.add_argument("--num-heldout", type=int, default=24)
    options = parser.parse_args(arguments)
    write_split(options.out / "train", TRAIN, options.seed, options.num_train)
    write_split(options.out / "heldout", HELDOUT, options.seed, options.num_heldout)


if __name__ == "__main__":
    main()
