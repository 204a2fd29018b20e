"""One try at a score: the task's tests/test.sh against a fresh copy of the artifact.

- The agent's code is hostile: the script runs on a copy, the tests are copied fresh from the task,
  the environment holds what this file names and no more, and nothing of the run outlives it.
- `process` isolation only: the scorer shares user, files and network with the stack.
- The reward is what the script leaves in $LOGS_DIR/verifier/reward.txt or reward.json. Its exit
  status counts only when there is neither.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.core.task_format import (
    REWARD_JSON_FILE,
    REWARD_TEXT_FILE,
    TEST_SCRIPT,
    TESTS_DIR,
    VERIFIER_DIR,
    InvalidReward,
    Reward,
    parse_reward_json,
    parse_reward_text,
)
from gyre.evaluator.errors import ScorerFailed
from gyre.evaluator.snapshot import extract

REAPER = Path(__file__).with_name("reaper.py")
MAX_REWARD_BYTES = 64 * 1024
# What the reaper may take beyond the scorer's time-out, to start and to clear away.
REAPER_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOrder:
    """artifact: bytes of the frozen workspace. task: the task's directory. scratch: a directory of
    this try alone, made anew. path: the scorer's PATH."""

    artifact: bytes
    task: Path
    scratch: Path
    timeout_s: float
    path: str
    max_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A valid score. scorer: digest of the tests it came from, the provenance of the number.
    seconds: what the scorer took, for the record only."""

    reward: Reward
    scorer: str
    seconds: float
    exit_code: int | None
    num_processes_left: int


async def score(order: ScoreOrder) -> Score:
    """Runs the scorer. Its logs stay in `scratch/logs`; the copies are removed.

    Raises ScorerFailed when there is no valid reward: missing tests, a time-out, no reward file,
    no finite number in it, a full disk.
    """
    try:
        scorer = await asyncio.to_thread(_lay_out, order)
        began = time.monotonic()
        result = await _run(order)
        seconds = time.monotonic() - began
        if result["timed_out"]:
            raise ScorerFailed(f"{TEST_SCRIPT} took longer than {order.timeout_s:g} s")
        reward = await asyncio.to_thread(_read_reward, order.scratch / "logs" / VERIFIER_DIR)
    except OSError as error:
        raise ScorerFailed(f"{type(error).__name__}: {error}") from error
    finally:
        await asyncio.to_thread(_clear_copies, order.scratch)
    if reward is None:
        raise ScorerFailed(f"{TEST_SCRIPT} left no reward file and {_ending(result)}")
    return Score(
        reward=reward,
        scorer=scorer,
        seconds=seconds,
        exit_code=result["exit_code"],
        num_processes_left=result["num_left"],
    )


def _lay_out(order: ScoreOrder) -> str:
    """Makes the scratch directory anew; the digest of the tests copied into it."""
    tests = order.task / TESTS_DIR
    if not (tests / TEST_SCRIPT).is_file():
        raise ScorerFailed(f"task {order.task.name}: has no {TESTS_DIR}/{TEST_SCRIPT}")
    remove_tree(order.scratch)
    for name in ("workspace", "home", "tmp", f"logs/{VERIFIER_DIR}"):
        (order.scratch / name).mkdir(parents=True)
    extract(order.artifact, order.scratch / "workspace")
    shutil.copytree(tests, order.scratch / "tests")
    return _tree_digest(order.scratch / "tests")


async def _run(order: ScoreOrder) -> dict[str, Any]:
    scratch = order.scratch
    command = {
        "argv": ["/bin/sh", str(scratch / "tests" / TEST_SCRIPT)],
        "cwd": str(scratch / "workspace"),
        "env": {
            "PATH": order.path,
            "HOME": str(scratch / "home"),
            "TMPDIR": str(scratch / "tmp"),
            "LANG": "C.UTF-8",
            "TESTS_DIR": str(scratch / "tests"),
            "LOGS_DIR": str(scratch / "logs"),
        },
        "output": str(scratch / "logs" / "scorer.log"),
        "timeout_s": order.timeout_s,
        "max_file_bytes": order.max_file_bytes,
    }
    reaper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(REAPER)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": order.path},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(order.timeout_s + REAPER_MARGIN_S):
            output, errors = await reaper.communicate(json.dumps(command).encode())
    except TimeoutError:
        raise ScorerFailed(f"{TEST_SCRIPT} could not be ended") from None
    finally:
        await _end(reaper)
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ScorerFailed(f"the scorer's process broke: {reason[:200]}") from None
    if "error" in result:
        raise ScorerFailed(f"{TEST_SCRIPT} could not be run: {result['error']}")
    return result


async def _end(reaper: asyncio.subprocess.Process) -> None:
    """SIGTERM makes the reaper take its tree along; SIGKILL is for one that cannot."""
    if reaper.returncode is not None:
        return
    with suppress(ProcessLookupError):
        reaper.terminate()
    try:
        async with asyncio.timeout(REAPER_MARGIN_S):
            await reaper.wait()
    except TimeoutError:
        reaper.kill()
        await reaper.wait()


def _read_reward(verifier: Path) -> Reward | None:
    """The reward file's content, None if there is none. Raises ScorerFailed if it is no reward."""
    try:
        if (text := _read_small(verifier / REWARD_TEXT_FILE)) is not None:
            return parse_reward_text(text)
        if (text := _read_small(verifier / REWARD_JSON_FILE)) is not None:
            return parse_reward_json(text)
    except InvalidReward as error:
        raise ScorerFailed(str(error)) from error
    return None


def _read_small(path: Path) -> str | None:
    """A regular file's text, None if there is none: no link is followed, no pipe waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ScorerFailed(f"{path.name}: is not a regular file")
        data = file.read(MAX_REWARD_BYTES + 1)
    if len(data) > MAX_REWARD_BYTES:
        raise ScorerFailed(f"{path.name}: is longer than {MAX_REWARD_BYTES} bytes")
    return data.decode(errors="replace")


def _tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = os.fsencode(path.relative_to(root))
        digest.update(b"%d:%s" % (len(name), name))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _ending(result: dict[str, Any]) -> str:
    if result["signal"] is not None:
        return f"was ended by signal {result['signal']}"
    return f"exited with {result['exit_code']}"


def _clear_copies(scratch: Path) -> None:
    for name in ("workspace", "tests", "home", "tmp"):
        remove_tree(scratch / name)


def remove_tree(path: Path) -> None:
    """Removes what an agent may have made: links are not followed, modes do not matter."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    if not path.is_dir():
        return
    path.chmod(0o700)
    for parent, names, _ in os.walk(path):
        for name in names:
            child = Path(parent, name)
            if not child.is_symlink():
                child.chmod(0o700)
    shutil.rmtree(path)
