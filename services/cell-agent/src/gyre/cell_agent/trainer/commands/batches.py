"""Commands of a batch: opened, its micro-steps added, closed by the update or dropped."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from gyre.adapters.failpoints import failpoint
from gyre.adapters.microsteps import decode_microstep, microstep_digest
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import BadMicroStep, CheckpointError
from gyre.cell_agent.trainer.update import finish_batch
from gyre.cell_agent.trainer.weights_io import to_bytes
from gyre.core.microstep import MicroStep, MicroStepError

NAMES = ("begin_batch", "micro_step", "drop_accumulation", "finish_batch", "save_gradients")


class BatchCommands(CommandFamily):
    def begin_batch(self, *, batch: str, version: int) -> Answer:
        self.trainer.begin_batch(batch, version)
        return {"batch": batch, "version": version}

    def micro_step(self, *, path: Path, digest: str | None = None) -> Answer:
        """path: an encoded micro-step. digest: its SHA-256, if it shall be verified.

        Under an emulated speed it takes tokens / rate, a token being one of the packed rows'."""
        step = _read_micro_step(path, digest)
        started = time.perf_counter()
        report = self.trainer.micro_step(step)
        if self.launch.tokens_per_s is not None:
            elapsed = time.perf_counter() - started
            time.sleep(max(0.0, step.num_tokens / self.launch.tokens_per_s - elapsed))
        failpoint(f"trainer_{self.launch.cell}.mid_accumulation")
        return report.as_answer(time.perf_counter() - started)

    def drop_accumulation(self) -> Answer:
        return {"dropped": self.trainer.drop_accumulation()}

    def finish_batch(self, *, members: list[int], epoch: int, final: bool) -> Answer:
        """Reduction, the core's update, and unless `final` the broadcast. version: the batch's plus
        one; weights_version: what this process holds, on satellites the old one after `final`.
        executions: on the core, s_i and m_i of every execution of the step."""
        started = time.perf_counter()
        finished = finish_batch(self.trainer, members=members, epoch=epoch, final=final)
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
            if self.source is not None:
                self.weights_changed()
        return answer

    def save_gradients(self, *, path: Path) -> Answer:
        """Safetensors by Hugging Face names, to compare runs: of the open accumulation, or of the
        batch finished last (summed, on the core clipped)."""
        try:
            path.write_bytes(to_bytes(self.trainer.gradients()))
        except OSError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return {"path": str(path)}


def _read_micro_step(path: Path, digest: str | None) -> MicroStep:
    try:
        payload = path.read_bytes()
        if digest is not None and microstep_digest(payload) != digest:
            raise BadMicroStep(f"{path}: the bytes do not match their digest")
        return decode_microstep(payload)
    except (OSError, MicroStepError) as error:
        raise BadMicroStep(f"{path}: {error}") from error
