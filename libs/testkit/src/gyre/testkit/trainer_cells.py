"""Real trainer processes of one job, with a store, and a batch for them to train."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.trainer.process.client import SILENCE_S, TrainerProcess
from gyre.cell_agent.trainer.process.launch import ONE_RANK, Meeting, TrainerLaunch
from gyre.cell_agent.weights.base import WEIGHTS_KEY
from gyre.contracts.training_job import LayoutSection
from gyre.core.microstep import MicroStep
from gyre.core.objective import ObjectiveSettings
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_calls import micro_step, stopped
from gyre.testkit.training import make_executions, make_micro_step

if TYPE_CHECKING:
    from torch import Tensor

# Generous: several trainers import torch at once, on whatever machine this is.
CALL_S = 120.0
# So wide that in every micro-step of `batch_of_steps` an execution has a gradient: s_i of a random
# policy lies between 0.2 and 0.8 there. A few are masked.
OBJECTIVE = ObjectiveSettings(
    name="gspo_token", clip_low=0.25, clip_high=1.5, token_weight_cap=5.0, loss_cap=100.0
)
OPTIMIZER = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    # So high that the core's gradient stays as it was summed.
    "grad_clip": 1e9,
}
NORMALIZER = 12


@dataclass(kw_only=True)
class Cells:
    """Trainers of one job, a store, and the batch they train."""

    model: Path
    work: Path
    dtype: str
    port: int
    layout: LayoutSection = ONE_RANK
    silence_s: float = SILENCE_S
    tokens_per_s: float | None = None
    trainers: list[TrainerGroup] = field(default_factory=list)
    epoch: int = 0
    num_started: int = 0

    async def add(self, **environment: str) -> TrainerGroup:
        """environment: of all its ranks."""
        self.num_started += 1
        prefix = f"cell/{len(self.trainers)}/{self.num_started}"
        launch = TrainerLaunch(
            cell=len(self.trainers),
            model_path=self.model,
            dtype=self.dtype,
            layout=self.layout,
            tokens_per_s=self.tokens_per_s,
            meeting=Meeting(host="127.0.0.1", port=self.port, prefix=prefix)
            if self.layout.num_ranks > 1
            else None,
        )
        trainer = TrainerGroup(
            [
                TrainerProcess(
                    launch.of_rank(number),
                    environment={WEIGHTS_KEY: "of the job", **environment},
                    log_path=self.work / "trainers.log",
                    silence_s=self.silence_s,
                )
                for number in range(self.layout.num_ranks)
            ]
        )
        self.trainers.append(trainer)
        await trainer.start(CALL_S)
        await trainer.call(
            "configure", CALL_S, job="j", optimizer=OPTIMIZER, objective=objective_json()
        )
        await self.load(trainer)
        return trainer

    async def load(self, trainer: TrainerGroup) -> None:
        await trainer.call("load_weights", CALL_S, path=self.model, version=3, lineage=0)

    async def renew(self) -> None:
        """All trainers without an open batch, at the model's own weights."""
        for trainer in self.trainers:
            await trainer.call("drop_accumulation", CALL_S)
            await self.load(trainer)

    async def form(self, members: Sequence[TrainerGroup]) -> None:
        """The next epoch's world, with these as ranks 0, 1, ..."""
        self.epoch += 1
        await asyncio.gather(
            *(
                trainer.call(
                    "form_world",
                    CALL_S,
                    epoch=self.epoch,
                    rank=rank,
                    size=len(members),
                    store_port=self.port,
                    timeout_s=20.0,
                )
                for rank, trainer in enumerate(members)
            )
        )

    async def configure(self, **objective: Any) -> None:
        """objective: what differs from OBJECTIVE."""
        section = objective_json() | objective
        for trainer in self.trainers:
            await trainer.call("configure", CALL_S, job="j", optimizer=OPTIMIZER, objective=section)

    async def begin(
        self, members: Sequence[TrainerGroup], batch: str = "b0", version: int = 3
    ) -> None:
        await asyncio.gather(
            *(
                member.call("begin_batch", CALL_S, batch=batch, version=version)
                for member in members
            )
        )

    async def train(self, trainer: TrainerGroup, steps: Sequence[MicroStep]) -> list[Any]:
        answers = []
        for step in steps:
            path = self.work / f"{step.batch}-{step.index}.npz"
            path.write_bytes(encode_microstep(step))
            answers.append(await micro_step(trainer, path, CALL_S))
        return answers

    async def finish(
        self, members: Sequence[TrainerGroup], *, final: bool = False
    ) -> list[dict[str, Any] | BaseException]:
        return await asyncio.gather(
            *(
                member.call(
                    "finish_batch",
                    CALL_S,
                    members=list(range(len(members))),
                    epoch=self.epoch,
                    final=final,
                )
                for member in members
            ),
            return_exceptions=True,
        )

    async def gradients(self, trainer: TrainerGroup) -> dict[str, Tensor]:
        """Of its buffers, by Hugging Face names."""
        from gyre.cell_agent.trainer.model.weights_io import from_bytes

        path = self.work / "gradients.safetensors"
        await trainer.call("save_gradients", CALL_S, path=path)
        return dict(from_bytes(path.read_bytes()))


def objective_json() -> dict[str, Any]:
    return asdict(OBJECTIVE)


def batch_of_steps(batch: str = "b0", *, count: int = 5, seed: int = 0) -> list[MicroStep]:
    """Micro-steps of different sizes; the last one holds a single execution."""
    rng = random.Random(seed)
    executions = make_executions(rng, count=2 * count - 1, vocab_size=512)
    return [
        make_micro_step(
            executions[2 * index : 2 * index + 2], batch=batch, index=index, normalizer=NORMALIZER
        )
        for index in range(count)
    ]


@contextlib.asynccontextmanager
async def running(
    work: Path,
    *,
    dtype: str,
    num_cells: int,
    layout: LayoutSection = ONE_RANK,
    silence_s: float = SILENCE_S,
    tokens_per_s: float | None = None,
    num_experts: int | None = None,
) -> AsyncIterator[Cells]:
    """tokens_per_s: emulated, of each trainer. num_experts: of the model, None for a dense one."""
    store = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gyre.cell_agent.rendezvous"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert store.stdout is not None
    assert store.stdin is not None
    line = await asyncio.wait_for(store.stdout.readline(), CALL_S)
    cells = Cells(
        model=make_tiny_model(work / "model", num_experts=num_experts),
        work=work,
        dtype=dtype,
        port=json.loads(line)["port"],
        layout=layout,
        silence_s=silence_s,
        tokens_per_s=tokens_per_s,
    )
    try:
        await asyncio.gather(*(cells.add() for _ in range(num_cells)))
        yield cells
    finally:
        await asyncio.gather(*(stopped(trainer) for trainer in cells.trainers))
        store.stdin.close()
        assert await asyncio.wait_for(store.wait(), CALL_S) == 0
