"""A small real job: a random model, a harness of a few lines, tasks whose reward varies.

The harness calls the model through the proxy a few times and writes what it got; the scorer rewards
by what was written, so that groups have different rewards and every part of the pipeline has work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gyre.testkit.tiny_model import make_tiny_model

HARNESS = '''"""A chat loop of {num_turns} turns; retries as vendor clients do."""
import json, os, sys, time, urllib.error, urllib.request

messages = [{{"role": "user", "content": sys.argv[1]}}]


def complete(attempt=0):
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/chat/completions",
        json.dumps({{"model": "policy", "messages": messages}}).encode(),
        {{
            "Authorization": "Bearer " + os.environ["API_KEY"],
            "Content-Type": "application/json",
            "x-stainless-retry-count": str(attempt),
        }},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]
    except (urllib.error.HTTPError, OSError):
        if attempt == 4:
            raise
        time.sleep(0.5 * 2**attempt)
        return complete(attempt + 1)


for turn in range({num_turns}):
    message = complete()
    messages.append({{"role": "assistant", "content": message.get("content") or ""}})
    messages.append({{"role": "user", "content": "go on " + str(turn)}})
with open("said.txt", "w") as stream:
    stream.write(json.dumps(messages))
'''

TEST_SH = """#!/bin/sh
# Reward 1 when the transcript's length is even, else 0: varies within a group, needs no skill.
mkdir -p "$LOGS_DIR/verifier"
size=$(wc -c < said.txt)
echo $((1 - size % 2)) > "$LOGS_DIR/verifier/reward.txt"
"""


def write_small_job(
    root: Path,
    *,
    num_tasks: int = 8,
    num_heldout: int = 0,
    num_turns: int = 2,
    model: dict[str, Any] | None = None,
    **schedule: Any,
) -> dict[str, Any]:
    """Write model, tasks and harness below `root`; return the job as the API takes it.

    num_heldout: tasks of a held-out set; 0 for none.
    """
    make_tiny_model(root / "model", seed=3, **(model or {}))
    for number in range(num_tasks):
        _write_task(root / "tasks" / f"task-{number:02d}", number)
    for number in range(num_heldout):
        _write_task(root / "heldout" / f"unseen-{number:02d}", num_tasks + number)
    harness = root / "harness.py"
    harness.write_text(HARNESS.format(num_turns=num_turns), encoding="utf-8")
    return {
        "name": "small",
        "seed": 5,
        "model": {"path": str(root / "model"), "context_tokens": 1024},
        "harness": {
            "profile": "command",
            "timeout_s": 120,
            "settings": {
                "argv": [sys.executable, str(harness), "{prompt}"],
                "env": {"BASE_URL": "{base_url}", "API_KEY": "{api_key}"},
            },
        },
        "tasks": {"train": str(root / "tasks")}
        | ({"heldout": str(root / "heldout")} if num_heldout else {}),
        "rollout": {"max_new_tokens": 24, "call_timeout_s": 60},
        "cells": {"count": 3, "capacity": 4},
        "schedule": {
            "executions_per_group": 4,
            "groups_per_step": 4,
            "phi": 0.5,
            "mu": 2,
            "num_steps": 4,
            "rho_min": 0.25,
            "tau_s": 0.0,
            **schedule,
        },
        "admission": {"row_tokens": 1024, "tokens_per_micro_step": 1024},
        "objective": {"clip_low": 0.5, "clip_high": 2.0},
        "optimizer": {"lr": 1e-4},
    }


def _write_task(directory: Path, number: int) -> None:
    (directory / "tests").mkdir(parents=True)
    (directory / "environment").mkdir()
    (directory / "task.toml").write_text('version = "1.0"\n', encoding="utf-8")
    (directory / "instruction.md").write_text(f"Say something about {number}.\n", encoding="utf-8")
    (directory / "environment" / "input.txt").write_text(f"{number}\n", encoding="utf-8")
    script = directory / "tests" / "test.sh"
    script.write_text(TEST_SH, encoding="utf-8")
    script.chmod(0o755)
