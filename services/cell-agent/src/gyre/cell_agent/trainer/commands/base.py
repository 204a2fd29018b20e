"""What all families of commands share: the trainer, and the server of its weights."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.errors import BadCommand
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.process.launch import TrainerLaunch
from gyre.cell_agent.trainer.settings import parse_settings
from gyre.cell_agent.trainer.trainer import MegatronTrainer
from gyre.cell_agent.weights.base import WEIGHTS_KEY, WeightSource
from gyre.cell_agent.weights.payload import Payload
from gyre.core.policy_weights import weight_shapes

Answer = dict[str, Any]


class CommandFamily:
    """State of the process that commands work on; what concerns all of it.

    is_serving: `serve_weights` has asked for it; source: on the cell's first rank, which serves
    them for all. exposed: what it was given last.
    """

    def __init__(self, launch: TrainerLaunch, device: torch.device) -> None:
        """device: that this rank computes on."""
        self.launch = launch
        self.dtype: torch.dtype = getattr(torch, launch.dtype)
        policy, recompute = read_policy_config(launch.model_path), launch.recompute == "full"
        self.trainer = MegatronTrainer(policy, self.dtype, device, recompute=recompute)
        self.trainer.cell, self.trainer.tokens_per_s = launch.cell, launch.tokens_per_s
        self.is_serving = False
        self.source: WeightSource | None = None
        self.exposed: WeightsName | None = None
        self.num_exposed_bytes = 0

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
        """Names what is held, and exposes it if it is served. All ranks of the cell call it."""
        held = self.trainer.require_held()
        if self.is_serving:
            self.expose_held()
        return {"version": held.version, "lineage": held.lineage}

    def expose_held(self) -> None:
        """Copies what is held to the source's memory. Only the copy is made here: digests are made
        on threads, so that the core is not kept from its micro-steps."""
        held = self.exposed = self.trainer.require_held()
        payload = Payload(weight_shapes(self.trainer.policy), self.dtype)
        if self.source is None:
            # What is this rank's of them goes to the first.
            self.trainer.give_weights(lambda name, tensor: None)
            return
        buffer = self.source.buffer(payload.num_bytes)
        payload.begin(buffer.view)
        self.trainer.give_weights(partial(payload.put, buffer.view))
        self.source.expose(buffer, version=held.version, lineage=held.lineage)
        self.num_exposed_bytes = payload.num_bytes

    def weights_key(self) -> str:
        """The job's, which both sides of a pull prove to hold. Raises BadCommand: there is none."""
        key = os.environ.get(WEIGHTS_KEY)
        if not key:
            raise BadCommand(f"weights are served and pulled by the job's key: set {WEIGHTS_KEY}")
        return key
