"""Job files: paths relative to the file, faults in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.cli.errors import CommandError
from gyre.cli.jobfile import load_job_file


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "jobs" / "job.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_relative_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/someone")
    path = _write(
        tmp_path,
        "model: {path: ../model, family: qwen3}\n"
        "tasks: {train: /absolute/train, heldout: ~/heldout}\n"
        "harness: {profile: llm, settings: {functions_path: tools.py, chain_limit: 8}}\n",
    )
    assert load_job_file(path) == {
        "model": {"path": str(tmp_path / "model"), "family": "qwen3"},
        "tasks": {"train": "/absolute/train", "heldout": "/home/someone/heldout"},
        "harness": {
            "profile": "llm",
            "settings": {"functions_path": str(tmp_path / "jobs" / "tools.py"), "chain_limit": 8},
        },
    }


@pytest.mark.parametrize(
    "text",
    [
        "model: none\ntasks: []\nharness: 3\n",
        "model: {path: 7}\nharness: {settings: [a]}\n",
        "harness: {settings: {functions_path: null, 1: x}}\n",
    ],
)
def test_sections_of_a_wrong_shape_are_left_for_the_scheduler_to_refuse(
    tmp_path: Path, text: str
) -> None:
    assert load_job_file(_write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mapping of sections"),
        ("- a\n- b\n", "mapping of sections"),
        ("just words", "mapping of sections"),
        ("a: [1, 2\nb: 3\n", "line 2 is no YAML"),
        ("a: b: c\n", "line 1 is no YAML"),
        ("a: !!python/object:os.system x\n", "is no YAML"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("a: \x07\n", "is no YAML"),
        ("name: 2024-01-01\n", "a value cannot be sent"),
        ("schedule: {tau_s: .inf}\n", "a value cannot be sent"),
        ("schedule: {tau_s: .nan}\n", "a value cannot be sent"),
        ("name: !!set {a, b}\n", "a value cannot be sent"),
        ('model: {path: "a\\0b"}\n', "a value cannot be sent"),
        ("model: {path: ~nobody-of-this-name/x}\n", "a value cannot be sent"),
    ],
)
def test_a_fault_is_one_line_that_names_the_file(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(CommandError) as caught:
        load_job_file(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert words in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_a_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no such file; give the path of a job file"):
        load_job_file(tmp_path / "none.yaml")
    with pytest.raises(CommandError, match="cannot be read"):
        load_job_file(tmp_path)
