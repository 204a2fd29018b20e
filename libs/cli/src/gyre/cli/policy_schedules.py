"""An example's schedules of equal staleness: one job under several policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gyre.cli.errors import CommandError

FILE = "policies.yaml"


def read_schedules(example: Path) -> dict[str, dict[str, Any]]:
    """Name -> what it sets in the job's schedule, the default first. Raises CommandError."""
    path = example / FILE
    try:
        schedules = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CommandError(f"{path}: no such file; give the policy in the job file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
    if not isinstance(schedules, dict) or not schedules:
        raise CommandError(f"{path}: no policies; map each name to schedule settings")
    for name, settings in schedules.items():
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise CommandError(f"{path}: {name}: map a name to schedule settings")
    return schedules


def set_policy(raw: dict[str, Any], example: Path, name: str) -> None:
    """Put the schedule called `name` into a raw job. Raises CommandError: it is none of them."""
    schedules = read_schedules(example)
    if name not in schedules:
        raise CommandError(f"--policy {name}: {example / FILE} has {', '.join(schedules)}")
    raw["schedule"] = raw["schedule"] | schedules[name]
