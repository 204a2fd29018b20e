"""What the scheduler meets: a model and tasks on disk, cells that come online, a recorded queue."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.testkit.facts import role_changed

MODEL_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


def sound_job(root: Path, *, cells: int = 3, heldout: bool = False) -> dict[str, Any]:
    """A job that the scheduler accepts; what it names is made below `root`."""
    model = root / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG))
    for name in ("model.safetensors", "tokenizer.json"):
        (model / name).write_text("x")
    for name in ("train/b", "train/a", "heldout/h"):
        task = root / name
        task.mkdir(parents=True, exist_ok=True)
        (task / "task.toml").write_text("")
    (root / "tools.py").write_text("")
    return {
        "name": "job",
        "model": {"path": str(model), "context_tokens": 1024},
        "harness": {
            "profile": "llm",
            "timeout_s": 60,
            "settings": {"functions_path": str(root / "tools.py")},
        },
        "tasks": {"train": str(root / "train")}
        | ({"heldout": str(root / "heldout")} if heldout else {}),
        "rollout": {"max_new_tokens": 64},
        "cells": {"count": cells, "capacity": 4},
        "schedule": {
            "num_steps": 2,
            "groups_per_step": 2,
            "executions_per_group": 2,
            "phi": 0.5,
            "mu": 1,
            "tau_s": 0.1,
        },
    }


@dataclass
class RecordedQueue:
    """Implements the loop's WorkQueue: keeps (loop's time, order, message id) of every put."""

    puts: list[tuple[float, dict[str, Any], str]] = field(default_factory=list)

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        self.puts.append((asyncio.get_running_loop().time(), json.loads(data), msg_id))
        return len(self.puts)


class Cells:
    """Says what agents would say, at once."""

    def __init__(self, journal: Journal, count: int = 3) -> None:
        self._journal, self._count, self._num_said = journal, count, 0

    async def register(self) -> None:
        for cell in range(self._count):
            online = cell_events.AgentOnline(cell=cell, incarnation="i", host="h", pid=1)
            await self._say(subjects.registration(cell), subjects.CLUSTER, online)

    async def boot(self, job: str) -> None:
        """Trainers up, engines in rollout."""
        for cell in range(self._count):
            await self.say(job, cell, cell_events.TrainerReady(cell=cell, pid=1))
            await self.change_role(job, cell, "rollout")

    async def change_role(self, job: str, cell: int, role: cell_events.CellRole) -> None:
        await self.say(job, cell, role_changed(cell, role))

    async def say(self, job: str, cell: int, body: Body) -> int:
        return await self._say(subjects.cell(job, cell), job, body)

    async def _say(self, subject: str, job: str, body: Body) -> int:
        self._num_said += 1
        cause = (subject, "test", self._num_said)
        return await self._journal.append(subject, body, job=job, cause=cause, expected=None)
