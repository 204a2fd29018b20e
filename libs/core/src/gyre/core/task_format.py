"""A task in Harbor's format, as far as Gyre reads it. Pure: text in, values out.

<task>/task.toml        what the task declares about itself
<task>/instruction.md   the prompt
<task>/environment/     files of the workspace at the start (and a Dockerfile for containers)
<task>/tests/test.sh    the scorer; writes the reward to $LOGS_DIR/verifier/reward.{txt,json}
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SETTINGS_FILE = "task.toml"
INSTRUCTION_FILE = "instruction.md"
ENVIRONMENT_DIR = "environment"
TESTS_DIR = "tests"
TEST_SCRIPT = "test.sh"
VERIFIER_DIR = "verifier"
REWARD_TEXT_FILE = "reward.txt"
REWARD_JSON_FILE = "reward.json"

# They describe how a container is built; the process sandbox copies the rest.
BUILD_FILES = frozenset(
    {"Dockerfile", ".dockerignore", "docker-compose.yaml", "docker-compose.yml"}
)


class InvalidTask(ValueError):
    """The task cannot be used: its directory or one of its files is not as the format says."""


class InvalidReward(ValueError):
    """The scorer left a reward that is no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What task.toml declares. The time-outs, seconds, are the task's wish; the job's settings
    decide. None where the task says nothing."""

    agent_timeout_s: float | None
    verifier_timeout_s: float | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """value: the reward of the execution. parts: everything a reward.json held, value included."""

    value: float
    parts: Mapping[str, float]


def checked_task_name(name: str) -> str:
    """`name` if it is one directory's name, else InvalidTask: a task never leaves its set."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise InvalidTask(f"task {name!r}: not the name of a directory in the task set")
    return name


def parse_settings(text: str) -> TaskSettings:
    """task.toml. Raises InvalidTask for broken TOML and impossible time-outs."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTask(f"{SETTINGS_FILE}: {error}") from error
    return TaskSettings(
        agent_timeout_s=_timeout_s(raw, "agent"),
        verifier_timeout_s=_timeout_s(raw, "verifier"),
        metadata=_table(raw, "metadata"),
    )


def parse_instruction(text: str) -> str:
    """instruction.md without the white space around it. Raises InvalidTask when nothing is left."""
    prompt = text.strip()
    if not prompt:
        raise InvalidTask(f"{INSTRUCTION_FILE}: is empty")
    return prompt


def parse_reward_text(text: str) -> Reward:
    """reward.txt: one number. Raises InvalidReward unless it is finite."""
    try:
        value = float(text.strip())
    except ValueError:
        raise InvalidReward(f"{REWARD_TEXT_FILE}: {text.strip()[:40]!r} is not a number") from None
    return Reward(value=_finite(value, REWARD_TEXT_FILE), parts={})


def parse_reward_json(text: str) -> Reward:
    """reward.json: an object of numbers, whose `reward`, or only entry, is the reward.

    Raises InvalidReward for anything else, and for a number that is not finite.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidReward(f"{REWARD_JSON_FILE}: is not JSON") from None
    if not isinstance(raw, dict) or not raw:
        raise InvalidReward(f"{REWARD_JSON_FILE}: is not an object with at least one entry")
    parts = {}
    for name, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidReward(f"{REWARD_JSON_FILE}: {name[:40]!r} is not a number")
        parts[name] = _finite(value, REWARD_JSON_FILE)
    if "reward" in parts:
        return Reward(value=parts["reward"], parts=parts)
    if len(parts) > 1:
        raise InvalidReward(f"{REWARD_JSON_FILE}: has {len(parts)} entries and none named 'reward'")
    return Reward(value=next(iter(parts.values())), parts=parts)


def _finite(value: float, file: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise InvalidReward(f"{file}: an integer too large for a reward") from None
    if not math.isfinite(number):
        raise InvalidReward(f"{file}: {number} is not finite")
    return number


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise InvalidTask(f"{SETTINGS_FILE}: [{name}] is not a table")
    return table


def _timeout_s(raw: Mapping[str, Any], section: str) -> float | None:
    value = _table(raw, section).get("timeout_sec")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidTask(
            f"{SETTINGS_FILE}: {section}.timeout_sec is {value!r}, not a positive number"
        )
    return float(value)
