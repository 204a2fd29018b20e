"""One try of a scorer, with real processes."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from gyre.evaluator.errors import ScorerFailed
from gyre.evaluator.scorer import Score, ScoreOrder, score
from gyre.evaluator.snapshot import Limits, take_snapshot


async def run(
    tmp_path: Path, script: str, *, files: dict[str, str] | None = None, timeout_s: float = 10.0
) -> Score:
    """Score a workspace of `files` with `script` as tests/test.sh."""
    task, workspace = tmp_path / "a task", tmp_path / "workspace"
    (task / "tests").mkdir(parents=True)
    (task / "tests" / "test.sh").write_text(script)
    workspace.mkdir()
    for name, text in (files or {}).items():
        (workspace / name).write_text(text)
    limits = Limits(max_bytes=1_000_000, max_entries=100)
    order = ScoreOrder(
        artifact=take_snapshot(workspace, limits).data,
        task=task,
        scratch=tmp_path / "scratch of it",
        timeout_s=timeout_s,
        path="/usr/bin:/bin",
        max_file_bytes=1_000_000,
    )
    return await score(order)


async def test_the_script_sees_the_workspace_and_its_own_directories(tmp_path: Path) -> None:
    script = (
        'set -e\ntest -f "$TESTS_DIR/test.sh"\ntest "$(cat answer.txt)" = 7\n'
        'env | cut -d= -f1 | sort > "$LOGS_DIR/names"\n'
        'echo 0.25 > "$LOGS_DIR/verifier/reward.txt"\n'
    )
    result = await run(tmp_path, script, files={"answer.txt": "7\n"})
    assert (result.reward.value, result.exit_code) == (0.25, 0)
    names = (tmp_path / "scratch of it" / "logs" / "names").read_text().split()
    assert set(names) == {"HOME", "LANG", "LOGS_DIR", "PATH", "PWD", "TESTS_DIR", "TMPDIR"}


async def test_zero_is_a_valid_score(tmp_path: Path) -> None:
    assert (await run(tmp_path, 'echo 0 > "$LOGS_DIR/verifier/reward.txt"')).reward.value == 0.0


async def test_a_reward_counts_whatever_the_exit_status(tmp_path: Path) -> None:
    result = await run(tmp_path, 'echo 0.5 > "$LOGS_DIR/verifier/reward.txt"; exit 3')
    assert (result.reward.value, result.exit_code) == (0.5, 3)


async def test_a_reward_json_is_read(tmp_path: Path) -> None:
    script = """echo '{"reward": 0.5, "style": 1}' > "$LOGS_DIR/verifier/reward.json" """
    result = await run(tmp_path, script)
    assert result.reward.parts == {"reward": 0.5, "style": 1.0}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exit 3", "left no reward file and exited with 3"),
        ("exit 0", "left no reward file and exited with 0"),
        ("kill -9 $$", "left no reward file and was ended by signal 9"),
        ('echo nan > "$LOGS_DIR/verifier/reward.txt"', "is not finite"),
        ('mkfifo "$LOGS_DIR/verifier/reward.txt"', "is not a regular file"),
        ('ln -s /etc/hostname "$LOGS_DIR/verifier/reward.txt"', "symbolic"),
        ('rm -r "$LOGS_DIR"; exit 1', "left no reward file"),
    ],
)
async def test_a_scorer_without_a_reward_has_failed(
    tmp_path: Path, script: str, error: str
) -> None:
    with pytest.raises(ScorerFailed, match=error):
        await run(tmp_path, script)


async def test_a_time_out_is_a_failure_of_the_scorer(tmp_path: Path) -> None:
    began = time.monotonic()
    script = 'echo 1 > "$LOGS_DIR/verifier/reward.txt"; trap "" TERM; sleep 60'
    with pytest.raises(ScorerFailed, match=r"took longer than 0.5 s"):
        await run(tmp_path, script, timeout_s=0.5)
    assert time.monotonic() - began < 10


async def test_nothing_the_scorer_started_is_left(tmp_path: Path) -> None:
    script = (
        '(setsid sh -c \'echo $$ > "$LOGS_DIR/pid"; trap "" TERM HUP; sleep 100\' &)\n'
        'while [ ! -s "$LOGS_DIR/pid" ]; do sleep 0.05; done\n'
        'echo 1 > "$LOGS_DIR/verifier/reward.txt"'
    )
    result = await run(tmp_path, script)
    assert result.num_processes_left >= 1
    pid = int((tmp_path / "scratch of it" / "logs" / "pid").read_text())
    assert not psutil.pid_exists(pid)


async def test_the_copies_are_gone_and_the_logs_stay(tmp_path: Path) -> None:
    await run(tmp_path, 'echo hello; mkdir -m 0 locked; echo 1 > "$LOGS_DIR/verifier/reward.txt"')
    scratch = tmp_path / "scratch of it"
    assert sorted(path.name for path in scratch.iterdir()) == ["logs"]
    assert (scratch / "logs" / "scorer.log").read_text() == "hello\n"


async def test_the_workspace_itself_is_not_touched(tmp_path: Path) -> None:
    await run(
        tmp_path,
        'echo changed > a.txt; echo 1 > "$LOGS_DIR/verifier/reward.txt"',
        files={"a.txt": "kept"},
    )
    assert (tmp_path / "workspace" / "a.txt").read_text() == "kept"


async def test_a_task_without_tests_cannot_be_scored(tmp_path: Path) -> None:
    order = ScoreOrder(
        artifact=b"",
        task=tmp_path / "nowhere",
        scratch=tmp_path / "scratch",
        timeout_s=1.0,
        path="/bin",
        max_file_bytes=1,
    )
    with pytest.raises(ScorerFailed, match=r"task nowhere: has no tests/test\.sh"):
        await score(order)
