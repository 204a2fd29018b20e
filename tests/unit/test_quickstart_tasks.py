"""The quickstart's tasks: what is held out, how a batch is made up, what the scorer gives."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
SEEDS = (0, 1, 2)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("tasks")


@pytest.mark.parametrize("seed", SEEDS)
def test_heldout_combinations_occur_neither_in_training_nor_in_the_warm_start(
    tasks: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    transcripts = importlib.import_module("transcripts")
    heldout = set().union(*(t.combinations for t in tasks.draw_tasks(seed, "heldout", 96)))
    train = set().union(*(t.combinations for t in tasks.draw_tasks(seed, "train", 96)))
    rng = random.Random(seed)
    warm = set().union(
        *(transcripts.draw_transcript(rng, 0.5)[0].combinations for _ in range(5000))
    )
    assert not heldout & train
    assert not heldout & warm


@pytest.mark.parametrize("seed", SEEDS)
def test_no_transcript_writes_a_heldout_combination(
    tasks: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    transcripts = importlib.import_module("transcripts")
    rng = random.Random(seed)
    written = {"train": 0, "heldout": 0}
    for _ in range(3000):
        task, turns = transcripts.draw_transcript(rng, 0.3)
        text = "".join(turn.completion for turn in turns)
        for split in written:
            for name in tasks.allowed_files(task.family, task.material, split):
                written[split] += f'"content": "{task.value}", "path": "{name}"' in text
    assert written["train"] > 1000
    assert written["heldout"] == 0


def test_every_part_of_a_heldout_combination_occurs_in_training(tasks: ModuleType) -> None:
    heldout = tasks.draw_tasks(0, "heldout", 96)
    for task in heldout:
        for target in task.targets:
            assert target in tasks.FILES
        assert tasks.allowed_files(task.family, task.material, "train")
    assert {name for family in tasks.FAMILIES for task in heldout if task.family == family
            for name in task.targets} == set(tasks.FILES)  # fmt: skip


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_each_block_of_six_is_balanced_over_families_and_lengths(
    tasks: ModuleType, split: str
) -> None:
    drawn = tasks.draw_tasks(3, split, 96)
    assert len({task.prompt + str(task.files) for task in drawn}) == 96
    for start in range(0, 96, 6):
        block = drawn[start : start + 6]
        assert sorted(task.family for task in block) == sorted(tasks.FAMILIES * 2)
        assert sorted(len(task.targets) for task in block) == sorted(tasks.TARGET_COUNTS)


def test_the_same_seed_gives_the_same_directories(tasks: ModuleType, tmp_path: Path) -> None:
    for name in ("a", "b"):
        tasks.write_split(tmp_path / name, "train", 5, 12)
    trees = [
        {path.relative_to(tmp_path / name): path.read_bytes()
         for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("a", "b")
    ]  # fmt: skip
    assert trees[0] == trees[1]
    assert len(list((tmp_path / "a" / "train").iterdir())) == 12


def score(folder: Path, workspace: Path, logs: Path) -> float:
    """The reward that the task's test.sh writes."""
    subprocess.run(
        ["sh", str(folder / "tests" / "test.sh")],
        cwd=workspace,
        env={"PATH": os.defpath, "TESTS_DIR": str(folder / "tests"), "LOGS_DIR": str(logs)},
        check=True,
        timeout=20,
    )
    return float((logs / "verifier" / "reward.txt").read_text(encoding="utf-8"))


def test_the_scorer_gives_the_fraction_of_right_files(tasks: ModuleType, tmp_path: Path) -> None:
    task = tasks.Task(
        family="sum", material=("4", "3"), targets=("answer.txt", "out.txt", "note.txt")
    )
    folder, workspace, logs = tmp_path / "a task", tmp_path / "work space", tmp_path / "logs"
    tasks.write_task(folder, task, "train")
    workspace.mkdir()
    files = {}
    rewards = [score(folder, workspace, logs)]
    for name, text in (("answer.txt", "7"), ("out.txt", "7\n"), ("note.txt", " 7")):
        files[name] = text
        (workspace / name).write_text(text, encoding="utf-8")
        rewards.append(score(folder, workspace, logs))
        assert abs(task.reward(files) - rewards[-1]) < 1e-3
    assert rewards == [0.0, 0.3333, 0.6667, 0.6667]


def test_a_task_that_cannot_be_drawn_is_an_error(tasks: ModuleType) -> None:
    with pytest.raises(ValueError, match="distinct"):
        tasks.draw_tasks(0, "heldout", 100_000)
