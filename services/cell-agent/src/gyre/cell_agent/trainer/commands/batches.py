"""Commands of a batch: opened, its micro-steps added, closed by the update or dropped."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

from gyre.adapters.blob_fetch import BlobUnavailable, fetch_body
from gyre.adapters.blobs import BlobError
from gyre.adapters.microsteps import decode_microstep
from gyre.cell_agent.trainer.batch.headers import lost_when_it_fails
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import (
    BadMicroStep,
    BodyUnavailable,
    CheckpointError,
    TrainerError,
)
from gyre.cell_agent.trainer.model.layout import cell_agrees
from gyre.cell_agent.trainer.model.weights_io import to_bytes
from gyre.cell_agent.trainer.update import finish_batch
from gyre.core.microstep import MicroStep, MicroStepError

NAMES = (
    *("begin_batch", "submit_step", "flush_steps", "drop_accumulation"),
    *("finish_batch", "save_gradients"),
)


class BatchCommands(CommandFamily):
    def begin_batch(self, *, batch: str, version: int) -> Answer:
        self.trainer.begin_batch(batch, version)
        return {"batch": batch, "version": version}

    def submit_step(self, *, source: str, digest: str | None = None) -> Answer:
        """source: of an encoded micro-step, a path or a URL. digest: its SHA-256; a URL needs it.
        Fetched and packed while the micro-step before is computed; answered when that one is done
        and this one's turn has come. Refused by all ranks of the cell if one of them cannot have
        it. slowest_s: of the batch's micro-steps until now."""
        step = _fetched_by_all(source, digest)
        self.trainer.submit(step)
        return {"accepted": step.index, "slowest_s": self.trainer.require_open_batch().slowest_s}

    def flush_steps(self) -> Answer:
        """Until all that was accepted is in the gradient buffers. reports: of those micro-steps
        that no answer has told of yet. The batch stays open."""
        reports = self.trainer.flush()
        accumulated = self.trainer.require_open_batch().accumulated
        return {
            "trained": list(accumulated),
            "reports": [report.as_answer() for report in reports],
        }

    def drop_accumulation(self) -> Answer:
        return {"dropped": self.trainer.drop_accumulation()}

    def finish_batch(self, *, members: list[int], epoch: int, final: bool) -> Answer:
        """What was accepted is computed first; then the reduction, the core's update, and unless
        `final` the broadcast. version: the batch's plus one; weights_version: what this process
        holds, on satellites the old one after `final`. executions: on the core, s_i and m_i of
        every execution of the step."""
        started = time.perf_counter()
        finished = finish_batch(self.trainer, members=members, epoch=epoch, final=final)
        held = self.trainer.held
        answer: Answer = {
            "version": finished.version,
            "weights_version": held.version if held else None,
            "num_micro_steps": finished.record.totals.num_micro_steps,
            "num_warmups": finished.num_warmups,
            "statistics": finished.record.statistics(),
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
            self.weights_changed()
        return answer

    def save_gradients(self, *, path: Path) -> Answer:
        """Safetensors by Hugging Face names, to compare runs: of the open accumulation, as far as
        the cell's first ranks have it; or of the batch finished last (summed, on the core clipped).
        The first rank writes it."""
        if self.trainer.open is not None:
            self.trainer.flush()
        gradients = self.trainer.gradients()
        try:
            if self.launch.rank == 0:
                path.write_bytes(to_bytes(gradients))
        except OSError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return {"path": str(path)}


def _fetched_by_all(source: str, digest: str | None) -> MicroStep:
    """On all ranks of the cell, or on none: one alone that refuses would be out of step with the
    others. Raises BadMicroStep, BodyUnavailable; StageLost: a rank is gone."""
    step: MicroStep | None = None
    reason: TrainerError = BodyUnavailable(f"{source}: another rank of the cell could not have it")
    try:
        step = _read_micro_step(source, digest)
    except (BadMicroStep, BodyUnavailable) as error:
        reason = error
    agreed = lost_when_it_fails(lambda: cell_agrees(step is not None))
    if step is None or not agreed:
        raise reason
    return step


def _read_micro_step(source: str, digest: str | None) -> MicroStep:
    """Raises BadMicroStep, BodyUnavailable. Whoever knows the bytes by their digest may have them
    by HTTP."""
    try:
        if digest is None:
            return decode_microstep(Path(source).read_bytes())
        return decode_microstep(fetch_body(source, digest, os.environ.get("GYRE_BLOBS_KEY", "")))
    except BlobUnavailable as error:
        raise BodyUnavailable(str(error)) from error
    except (OSError, BlobError, MicroStepError) as error:
        raise BadMicroStep(f"{source}: {error}") from error
