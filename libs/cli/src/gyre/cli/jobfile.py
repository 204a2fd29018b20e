"""Reads a job file: YAML whose relative paths are relative to the file itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gyre.cli.errors import CommandError

# Fields that hold paths; `harness.settings` has its own, which the profile names with `_path`.
_PATHS = (("model", "path"), ("tasks", "train"), ("tasks", "heldout"))


def load_job_file(path: Path) -> dict[str, Any]:
    """The job as the API takes it, paths absolute. Raises CommandError."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CommandError(f"{path}: no such file; give the path of a job file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f" line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", error)
        raise CommandError(f"{path}:{line} is no YAML: {problem}") from error
    if not isinstance(raw, dict):
        raise CommandError(f"{path}: a job file is a mapping of sections")
    raw.pop("plan", None)  # for `gyre plan` alone
    try:
        _resolve(raw, path.resolve().parent)
        json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError, RuntimeError) as error:
        # YAML also has dates, sets and infinities, and a path may hold what no path may.
        raise CommandError(f"{path}: a value cannot be sent: {error}; correct it") from error
    return raw


def _resolve(raw: dict[str, Any], base: Path) -> None:
    for section, field in _PATHS:
        values = raw.get(section)
        if isinstance(values, dict) and isinstance(values.get(field), str):
            values[field] = str(_absolute(base, values[field]))
    harness = raw.get("harness")
    settings = harness.get("settings") if isinstance(harness, dict) else None
    if isinstance(settings, dict):
        for key, value in settings.items():
            if isinstance(key, str) and key.endswith("_path") and isinstance(value, str):
                settings[key] = str(_absolute(base, value))


def _absolute(base: Path, value: str) -> Path:
    return (base / Path(value).expanduser()).resolve()
