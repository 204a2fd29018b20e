"""Seeded generator of the quickstart's tasks, in Harbor's task format.

    python examples/quickstart/tasks.py --out DIR [--seed N] [--num-train 96] [--num-heldout 96]

Three families: write the sum of two digits (below ten), write the larger of two digits, copy
the word after KEY= from a file. Each result goes into one, two or three files; the reward is the
fraction of files that hold the right value. More files mean more turns, which gives executions a
heavy tail.

What is held out. A *combination* is (family, material, target file), where the material is the
unordered pair of digits or the word. For each material half of the target files are held out, by
a hash that depends on no seed. Training tasks (and the warm start's transcripts) use only the
other half; held-out tasks only the held-out half. Every digit, word and file occurs in training.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "heldout"]

FAMILIES = ("sum", "larger", "copy")
FILES = ("answer.txt", "out.txt", "result.txt", "copy.txt", "note.txt", "final.txt")
SOURCE = "input.txt"
# Sums stay below ten: a value is then one token in every family.
SUMMANDS = tuple((str(left), str(right)) for left in range(10) for right in range(10 - left))
WORDS = tuple(
    """
frog lamp tree moon star fish bird cake rain snow wolf bear lion corn rice salt gold iron wood
sand rock leaf seed root ship boat road hill lake pond wind fire milk bean pear plum kite drum
bell ring coat shoe sock door wall roof desk book page pen cup fork spoon plate bowl mint dune
harp jade
""".split()  # noqa: SIM905 - quoted one by one they fill a screen
)
NUM_HELDOUT_FILES = len(FILES) // 2
# Most tasks are short; one in six takes three writes. Six entries, so that a block of six tasks
# (one batch of the quickstart's schedule) holds each length in these proportions.
TARGET_COUNTS = (1, 1, 1, 2, 2, 3)
MAX_DRAWS = 1000

TEST_SH = """#!/bin/sh
# Reward = right files / expected files. Runs in the workspace; trailing newlines do not matter.
tests="${TESTS_DIR:-/tests}"
logs="${LOGS_DIR:-/logs}"
right=0
total=0
while read -r file value; do
    total=$((total + 1))
    if [ -f "$file" ] && [ "$(head -c 200 "$file")" = "$value" ]; then
        right=$((right + 1))
    fi
done < "$tests/expected.txt"
mkdir -p "$logs/verifier"
awk "BEGIN { printf \\"%.4f\\\\n\\", $right / $total }" > "$logs/verifier/reward.txt"
"""

TASK_TOML = """version = "1.0"

[metadata]
name = "{name}"
category = "{family}"
difficulty = "{difficulty}"
tags = ["quickstart", "{split}"]

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 20.0

[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 512
"""

DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /workspace\nCOPY . .\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: `material` is two digits or one word, `targets` the files to write in order."""

    family: str
    material: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def value(self) -> str:
        """The text that every target file must hold."""
        if self.family == "copy":
            return self.material[0]
        left, right = (int(digit) for digit in self.material)
        return str(left + right if self.family == "sum" else max(left, right))

    @property
    def prompt(self) -> str:
        """The instruction, one line."""
        *head, last = self.targets
        targets = f"{', '.join(head)} and {last}" if head else last
        if self.family == "copy":
            return f"Copy the word after KEY= from {SOURCE} to {targets}"
        return (
            f"Write the {self.family} of {self.material[0]} and {self.material[1]} into {targets}"
        )

    @property
    def files(self) -> dict[str, str]:
        """Files of the workspace at the start, by name."""
        return {SOURCE: f"KEY={self.material[0]}\n"} if self.family == "copy" else {}

    @property
    def combinations(self) -> set[tuple[str, tuple[str, ...], str]]:
        """(family, material without order, target file) of every file the task asks for."""
        material = tuple(sorted(self.material))
        return {(self.family, material, target) for target in self.targets}

    def reward(self, workspace: dict[str, str]) -> float:
        """What tests/test.sh gives for the workspace's files, by name."""
        right = sum(workspace.get(name, "").rstrip("\n") == self.value for name in self.targets)
        return right / len(self.targets)


def allowed_files(family: str, material: tuple[str, ...], split: Split) -> list[str]:
    """Target files that the split may combine with this material, in a fixed order."""
    text = f"{family} {' '.join(sorted(material))}"
    order = random.Random(hashlib.sha256(text.encode()).digest()).sample(FILES, len(FILES))
    return order[:NUM_HELDOUT_FILES] if split == "heldout" else order[NUM_HELDOUT_FILES:]


def draw_task(rng: random.Random, family: str, num_targets: int, split: Split) -> Task:
    """A random task of the family that writes `num_targets` files, within the split."""
    material: tuple[str, ...]
    if family == "copy":
        material = (rng.choice(WORDS),)
    elif family == "sum":
        material = rng.choice(SUMMANDS)
    else:
        material = tuple(str(digit) for digit in rng.sample(range(10), 2))
    targets = rng.sample(allowed_files(family, material, split), num_targets)
    return Task(family=family, material=material, targets=tuple(targets))


def draw_tasks(seed: int, split: Split, num_tasks: int) -> list[Task]:
    """Distinct tasks; every block of six holds each family twice and TARGET_COUNTS once."""
    rng = random.Random(f"{split} {seed}")
    tasks: list[Task] = []
    seen: set[str] = set()
    while len(tasks) < num_tasks:
        counts = rng.sample(TARGET_COUNTS, len(TARGET_COUNTS))
        for family, num_targets in zip(FAMILIES * 2, counts, strict=True):
            task = next(
                (
                    task
                    for task in (
                        draw_task(rng, family, num_targets, split) for _ in range(MAX_DRAWS)
                    )
                    if task.prompt + str(task.files) not in seen
                ),
                None,
            )
            if task is None:
                raise ValueError(f"there are not {num_tasks} distinct {split} tasks")
            seen.add(task.prompt + str(task.files))
            tasks.append(task)
    return tasks[:num_tasks]


def write_task(folder: Path, task: Task, split: Split) -> None:
    """Write one task directory; the folder must not exist."""
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    difficulty = ("easy", "medium", "hard")[len(task.targets) - 1]
    settings = TASK_TOML.format(
        name=folder.name, family=task.family, difficulty=difficulty, split=split
    )
    (folder / "task.toml").write_text(settings, encoding="utf-8")
    (folder / "instruction.md").write_text(task.prompt + "\n", encoding="utf-8")
    (folder / "environment" / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    (folder / "environment" / ".dockerignore").write_text("Dockerfile\n", encoding="utf-8")
    for name, text in task.files.items():
        (folder / "environment" / name).write_text(text, encoding="utf-8")
    expected = "".join(f"{name} {task.value}\n" for name in task.targets)
    (folder / "tests" / "expected.txt").write_text(expected, encoding="utf-8")
    (folder / "tests" / "test.sh").write_text(TEST_SH, encoding="utf-8")
    (folder / "tests" / "test.sh").chmod(0o755)


def write_split(out: Path, split: Split, seed: int, num_tasks: int) -> list[Task]:
    """Replace OUT/SPLIT by `num_tasks` task directories whose names sort in dispatch order."""
    tasks = draw_tasks(seed, split, num_tasks)
    shutil.rmtree(out / split, ignore_errors=True)
    for index, task in enumerate(tasks):
        write_task(out / split / f"{split}-{index:03d}-{task.family}", task, split)
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the quickstart's task directories.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-train", type=int, default=96)
    parser.add_argument("--num-heldout", type=int, default=96)
    args = parser.parse_args()
    train = write_split(args.out, "train", args.seed, args.num_train)
    heldout = write_split(args.out, "heldout", args.seed, args.num_heldout)
    print(f"{len(train)} train and {len(heldout)} heldout tasks in {args.out}")


if __name__ == "__main__":
    main()
