"""The trainer's commands: name and JSON arguments in, a JSON object or a TrainerError out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError, validate_call

from gyre.adapters.failpoints import failpoint
from gyre.adapters.microsteps import decode_microstep, microstep_digest
from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.checkpoint import load_checkpoint, save_checkpoint
from gyre.cell_agent.trainer.errors import (
    BadCommand,
    BadMicroStep,
    CheckpointError,
    TrainerError,
    WeightsUnavailable,
)
from gyre.cell_agent.trainer.hf_config import read_policy_config
from gyre.cell_agent.trainer.megatron import MegatronTrainer
from gyre.cell_agent.trainer.settings import parse_settings
from gyre.cell_agent.trainer.weights_io import checksum, from_bytes, read_weights, to_bytes
from gyre.cell_agent.trainer.world import Rendezvous
from gyre.cell_agent.weights.base import WeightSink, WeightSnapshot, WeightTransportError
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource
from gyre.core.microstep import MicroStep, MicroStepError

Answer = dict[str, Any]

NAMES = (
    "configure",
    "load_weights",
    "pull_weights",
    "serve_weights",
    "form_world",
    "leave_world",
    "begin_batch",
    "micro_step",
    "drop_accumulation",
    "finish_batch",
    "save_gradients",
    "save_checkpoint",
    "load_checkpoint",
    "offload",
    "restore",
    "checksum",
    "status",
)


class TrainerCommands:
    """One method per command. Arguments are checked against the method's annotations.

    tokens_per_s: an emulated training speed, below the machine's; None for the machine's own.
    """

    def __init__(
        self,
        cell: int,
        model_path: Path,
        dtype: torch.dtype,
        tokens_per_s: float | None = None,
    ) -> None:
        self.cell = cell
        self._tokens_per_s = tokens_per_s
        self.model_path = model_path
        self.trainer = MegatronTrainer(read_policy_config(model_path), dtype)
        self._source: TcpWeightSource | None = None
        self._sink: WeightSink = TcpWeightSink()
        self._methods: dict[str, Callable[..., Answer]] = {
            name: validate_call(getattr(self, name)) for name in NAMES
        }

    def run(self, command: str, arguments: Mapping[str, Any]) -> Answer:
        """Raises TrainerError. Anything else raised is a defect: the process should not go on."""
        method = self._methods.get(command)
        if method is None:
            raise BadCommand(f"no command is called {command!r}")
        try:
            return method(**arguments)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise BadCommand(f"{command}: {name}: {first['msg']}") from error

    def configure(
        self, *, job: str, objective: dict[str, Any], optimizer: dict[str, Any]
    ) -> Answer:
        """Before the first batch. objective, optimizer: the job file's sections."""
        settings = parse_settings(job, objective, optimizer)
        if settings != self.trainer.settings:
            self.trainer.set_optimizer_state(self.trainer.optimizer_state())
            self.trainer.settings = settings
        return {}

    def load_weights(self, *, path: Path, version: int, lineage: int) -> Answer:
        """From a Hugging Face directory. The optimizer starts afresh."""
        self.trainer.set_weights(read_weights(path), WeightsName(version=version, lineage=lineage))
        self.trainer.set_optimizer_state(None)
        return self._weights_changed()

    def serve_weights(self, *, host: str = "127.0.0.1", port: int = 0) -> Answer:
        """Exposes what is held, and after each later change what is held then."""
        self.trainer.require_held()
        if self._source is None:
            try:
                self._source = TcpWeightSource(host, port)
            except OSError as error:
                raise WeightsUnavailable(f"{host}:{port}: {error}") from error
        host, port = self._source.address
        return {"host": host, "port": port, **self._weights_changed()}

    def pull_weights(self, *, host: str, port: int, version: int, lineage: int) -> Answer:
        """From the core's serve_weights; verified before anything is replaced."""
        try:
            snapshot = self._sink.pull(host, port, version=version, lineage=lineage)
        except WeightTransportError as error:
            raise WeightsUnavailable(str(error)) from error
        weights = from_bytes(snapshot.payload)
        if checksum(weights) != snapshot.checksum:
            raise WeightsUnavailable("the pulled tensors do not match their checksum")
        self.trainer.set_weights(weights, WeightsName(version=version, lineage=lineage))
        return self._weights_changed()

    def form_world(
        self,
        *,
        epoch: int,
        rank: int,
        size: int,
        timeout_s: float,
        store_host: str = "127.0.0.1",
        store_port: int = 0,
    ) -> Answer:
        """Joins the job's world of this epoch, leaving the one before. Rank 0 is the core. A world
        of one needs no store."""
        if not 0 <= rank < size:
            raise BadCommand(f"form_world: rank {rank} of {size}")
        if self.trainer.settings is None:
            raise BadCommand("form_world: configure names the job first")
        self.trainer.form_world(
            Rendezvous(
                job=self.trainer.settings.job,
                epoch=epoch,
                rank=rank,
                size=size,
                store_host=store_host,
                store_port=store_port,
                timeout_s=timeout_s,
            )
        )
        return {"epoch": epoch, "rank": rank, "size": size}

    def leave_world(self) -> Answer:
        """Closes its connections, so that a peer still in a collective there sees this rank gone;
        the accumulation goes with it. No error outside a world."""
        self.trainer.leave_world()
        return {}

    def begin_batch(self, *, batch: str, version: int) -> Answer:
        self.trainer.begin_batch(batch, version)
        return {"batch": batch, "version": version}

    def micro_step(self, *, path: Path, digest: str | None = None) -> Answer:
        """path: an encoded micro-step. digest: its SHA-256, if it shall be verified.

        Under an emulated speed it takes tokens / rate, a token being one of the packed rows'."""
        step = _read_micro_step(path, digest)
        started = time.perf_counter()
        report = self.trainer.micro_step(step)
        if self._tokens_per_s is not None:
            elapsed = time.perf_counter() - started
            time.sleep(max(0.0, step.num_tokens / self._tokens_per_s - elapsed))
        failpoint(f"trainer_{self.cell}.mid_accumulation")
        return report.as_answer(time.perf_counter() - started)

    def drop_accumulation(self) -> Answer:
        return {"dropped": self.trainer.drop_accumulation()}

    def finish_batch(self, *, members: list[int], epoch: int, final: bool) -> Answer:
        """Reduction, the core's update, and unless `final` the broadcast. version: the batch's plus
        one; weights_version: what this process holds, on satellites the old one after `final`.
        executions: on the core, s_i and m_i of every execution of the step."""
        started = time.perf_counter()
        finished = self.trainer.finish_batch(members=members, epoch=epoch, final=final)
        held = self.trainer.held
        answer: Answer = {
            "version": finished.version,
            "weights_version": held.version if held else None,
            "num_micro_steps": finished.record.totals.num_micro_steps,
            "statistics": finished.record.totals.as_step(),
            "seconds": time.perf_counter() - started,
        }
        if finished.update is not None:
            update = finished.update
            answer |= {
                "skipped": update.skipped,
                "skip_reason": update.skip_reason,
                "grad_norm": update.grad_norm,
                "lr": update.lr,
                "broadcast_lost": finished.lost,
                "executions": [asdict(one) for one in finished.record.executions],
            }
            if self._source is not None:
                self._weights_changed()
        return answer

    def save_gradients(self, *, path: Path) -> Answer:
        """Safetensors by Hugging Face names, to compare runs: of the open accumulation, or of the
        batch finished last (summed, on the core clipped)."""
        try:
            path.write_bytes(to_bytes(self.trainer.gradients()))
        except OSError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return {"path": str(path)}

    def save_checkpoint(self, *, directory: Path) -> Answer:
        """The directory must not exist, or hold this very checkpoint."""
        held = self.trainer.require_held()
        try:
            manifest = save_checkpoint(
                directory,
                model_path=self.model_path,
                weights=self.trainer.weights(),
                optimizer=self.trainer.optimizer_state(),
                version=held.version,
                lineage=held.lineage,
            )
        except OSError as error:
            raise CheckpointError(f"{directory}: {error}") from error
        return {
            "path": str(directory),
            "version": manifest.version,
            "lineage": manifest.lineage,
            "sha256": manifest.sha256,
        }

    def load_checkpoint(self, *, directory: Path, lineage: int | None = None) -> Answer:
        """Weights and optimizer state. lineage: the new one that a restore starts."""
        checkpoint = load_checkpoint(directory)
        manifest = checkpoint.manifest
        name = WeightsName(
            version=manifest.version, lineage=manifest.lineage if lineage is None else lineage
        )
        self.trainer.set_weights(checkpoint.weights, name)
        self.trainer.set_optimizer_state(checkpoint.optimizer)
        return {"num_updates": manifest.num_updates, **self._weights_changed()}

    def offload(self) -> Answer:
        self.trainer.offload()
        return {}

    def restore(self) -> Answer:
        self.trainer.restore()
        return {}

    def checksum(self) -> Answer:
        """Equals what the engine's /weights_checker says once it serves these weights."""
        held = self.trainer.require_held()
        return {
            "checksum": checksum(self.trainer.weights()),
            "version": held.version,
            "lineage": held.lineage,
        }

    def status(self) -> Answer:
        served = self._source.address if self._source else None
        return {"cell": self.cell, "pid": os.getpid(), "served": served, **self.trainer.status()}

    def _weights_changed(self) -> Answer:
        """Names what is held, and hands it to the weight server if there is one."""
        held, weights = self.trainer.require_held(), self.trainer.weights()
        total = checksum(weights)
        if self._source is not None:
            self._source.expose(
                WeightSnapshot.of(
                    to_bytes(weights), version=held.version, lineage=held.lineage, checksum=total
                )
            )
        return {"version": held.version, "lineage": held.lineage, "checksum": total}


def _read_micro_step(path: Path, digest: str | None) -> MicroStep:
    try:
        payload = path.read_bytes()
        if digest is not None and microstep_digest(payload) != digest:
            raise BadMicroStep(f"{path}: the bytes do not match their digest")
        return decode_microstep(payload)
    except (OSError, MicroStepError) as error:
        raise BadMicroStep(f"{path}: {error}") from error


__all__ = ["NAMES", "Answer", "TrainerCommands", "TrainerError"]
