"""What all families of commands share: the trainer, and the server of its weights."""

from __future__ import annotations

import os
from typing import Any

import torch

from gyre.cell_agent.trainer.hf_config import read_policy_config
from gyre.cell_agent.trainer.launch import TrainerLaunch
from gyre.cell_agent.trainer.settings import parse_settings
from gyre.cell_agent.trainer.trainer import MegatronTrainer
from gyre.cell_agent.trainer.weights_io import checksum, to_bytes
from gyre.cell_agent.weights.base import WeightSnapshot
from gyre.cell_agent.weights.tcp import TcpWeightSource

Answer = dict[str, Any]


class CommandFamily:
    """State of the process that commands work on; what concerns all of it.

    source: serves the weights held, once `serve_weights` has asked for it.
    """

    def __init__(self, launch: TrainerLaunch) -> None:
        self.launch = launch
        dtype: torch.dtype = getattr(torch, launch.dtype)
        self.trainer = MegatronTrainer(read_policy_config(launch.model_path), dtype)
        self.source: TcpWeightSource | None = None

    def configure(
        self, *, job: str, objective: dict[str, Any], optimizer: dict[str, Any]
    ) -> Answer:
        """Before the first batch. objective, optimizer: the job file's sections."""
        settings = parse_settings(job, objective, optimizer)
        if settings != self.trainer.settings:
            self.trainer.set_optimizer_state(self.trainer.optimizer_state())
            self.trainer.settings = settings
        return {}

    def status(self) -> Answer:
        served = self.source.address if self.source else None
        process = {"cell": self.launch.cell, "pid": os.getpid(), "served": served}
        return {**process, **self.trainer.status()}

    def weights_changed(self) -> Answer:
        """Names what is held, and hands it to the weight server if there is one."""
        held, weights = self.trainer.require_held(), self.trainer.weights()
        total = checksum(weights)
        if self.source is not None:
            self.source.expose(
                WeightSnapshot.of(
                    to_bytes(weights), version=held.version, lineage=held.lineage, checksum=total
                )
            )
        return {"version": held.version, "lineage": held.lineage, "checksum": total}
