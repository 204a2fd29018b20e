"""By when a trainer has to answer: the one rule for its commands and for the phases of a switch.

    base + bytes / FLOOR_BYTES_PER_S        of what moves the model's bytes
    base + operations / FLOOR_FLOPS         of what computes a micro-step

Floors are far below what a machine does, and a deadline is for a process that lives and does not
come to its end: one that is stopped or gone is silent (`trainer.process.client`), and after the
first micro-step the cell's own pace bounds the others (`pace`). Worked out, in seconds:

| model, as files | weights_s | state_s | save_s | step_s of 8,192 tokens |
|---|---|---|---|---|
| the tests', 0.4 MB | 60 | 60 | 240 | 243 on a CPU |
| 135 M parameters, 270 MB | 65 | 114 | 294 | 2,452 on a CPU |
| 30 G parameters, 60 GB | 1,260 | 12,060 | 12,240 | 363 on a GPU |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gyre.contracts.job import JobSpec

# Less than half of what a disk or a network of 1 Gbit/s moves, hashed on the way by one core.
FLOOR_BYTES_PER_S = 50e6
# A core that others want too; a tenth of what a training GPU does. However many ranks a cell has.
FLOOR_FLOPS: Mapping[str, float] = MappingProxyType({"cpu": 5e9, "cuda": 2e13})

# Parameters, float32 masters, two moments and gradients: up to 20 bytes a parameter, which has at
# least 2 in the model's files.
STATE_BYTES = 10
# By parameter and token: forward 2, backward 4, and forward again where activations are computed
# anew (2) and where a micro-step takes two passes (2).
_FLOPS = 10
_LEAST_BYTES_PER_PARAMETER = 2

# A command that moves nothing large.
COMMAND_S = 60.0
# A process that imports torch and megatron beside others that do.
_START_S = 120.0
# A micro-step of a small model, or a checkpoint of it; whatever a busy machine does besides.
_LONG_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """num_bytes: of the model's weights as files. num_tokens: of a normal micro-step. flops: the
    least that a cell computes in a second. All in seconds."""

    num_bytes: int
    num_tokens: int
    flops: float

    def moving_s(self, times: float) -> float:
        """Of so many times the weights' bytes."""
        return times * self.num_bytes / FLOOR_BYTES_PER_S

    @property
    def start_s(self) -> float:
        """Until a new process takes commands: it makes the model and its buffers."""
        return _START_S + self.moving_s(STATE_BYTES)

    @property
    def weights_s(self) -> float:
        """Weights read or copied once."""
        return COMMAND_S + self.moving_s(1)

    @property
    def pull_s(self) -> float:
        """Weights pulled from a core that may be making their digests, and be asked again."""
        return _LONG_S + self.moving_s(1)

    @property
    def state_s(self) -> float:
        """All that a trainer holds read, or moved between its memory and where it is kept."""
        return COMMAND_S + self.moving_s(STATE_BYTES)

    @property
    def save_s(self) -> float:
        """A checkpoint written, with what makes room for it."""
        return _LONG_S + self.moving_s(STATE_BYTES)

    @property
    def step_s(self) -> float:
        """A micro-step, while none is known to compare it with."""
        num_parameters = self.num_bytes / _LEAST_BYTES_PER_PARAMETER
        return _LONG_S + _FLOPS * num_parameters * self.num_tokens / self.flops

    @property
    def drop_s(self) -> float:
        """What is dropped with an accumulation ends first: the micro-step under way."""
        return COMMAND_S + self.step_s

    @property
    def world_s(self) -> float:
        """Members come to a world, and to a reduction, within the time of their current micro-step;
        a peer is taken for lost only after longer than that."""
        return self.drop_s

    @property
    def finish_s(self) -> float:
        """The batch's last micro-step, the members' coming, the sum, the update, the broadcast."""
        return self.world_s + self.step_s + self.moving_s(STATE_BYTES)


def deadlines_of(spec: JobSpec, device: str) -> Deadlines:
    """Of a cell that trains this job's model. device: of its trainer, `cpu` or `cuda`. Without the
    model's files, which a trainer refuses, the rule's bases."""
    return Deadlines(
        num_bytes=_files_bytes(Path(spec.model.path)),
        num_tokens=spec.admission.tokens_per_micro_step,
        flops=FLOOR_FLOPS[device],
    )


def _files_bytes(model_path: Path) -> int:
    """0 where they cannot be looked at."""
    try:
        return sum(file.stat().st_size for file in model_path.glob("*.safetensors"))
    except OSError:
        return 0
