"""Megatron's trainer in this very process, to look into. Never in pytest's own: the trainer's CPU
shim patches torch for its whole process, so what uses this runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gyre.core.microstep import MicroStep
from gyre.core.objective import ObjectiveSettings

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.batch.batch_record import MicroStepReport
    from gyre.cell_agent.trainer.batch.passes import Evaluated
    from gyre.cell_agent.trainer.model.packing import PackedMicroStep
    from gyre.cell_agent.trainer.trainer import MegatronTrainer

# Wide bounds keep most executions of a random policy in; the mask has tests of its own.
OBJECTIVE = ObjectiveSettings(
    name="gspo_token", clip_low=0.05, clip_high=20.0, token_weight_cap=5.0, loss_cap=100.0
)
VERSION = 3


def start_world() -> None:
    """Once a process, before the first trainer."""
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.layout import start_cell_world

    start_cell_world(device=CPU)


def make_trainer(model_path: Path, dtype: torch.dtype, **options: Any) -> MegatronTrainer:
    """Configured, and with the directory's weights as `VERSION`. options: of `build_module`."""
    from gyre.cell_agent.trainer.carriers import WeightsName
    from gyre.cell_agent.trainer.device import CPU
    from gyre.cell_agent.trainer.model.hf_config import read_policy_config
    from gyre.cell_agent.trainer.model.weights_io import read_weights
    from gyre.cell_agent.trainer.settings import OptimizerSettings, TrainerSettings
    from gyre.cell_agent.trainer.trainer import MegatronTrainer

    trainer = MegatronTrainer(read_policy_config(model_path), dtype, CPU, **options)
    weights = {name: tensor.to(dtype) for name, tensor in read_weights(model_path).items()}
    trainer.set_weights(weights, WeightsName(version=VERSION, lineage=0))
    optimizer = OptimizerSettings(
        lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0, grad_clip=1e9
    )
    trainer.settings = TrainerSettings(
        job="j", objective=OBJECTIVE, optimizer=optimizer, max_mismatch=None
    )
    return trainer


def added(trainer: MegatronTrainer, step: MicroStep) -> MicroStepReport:
    """Into the gradients of the open batch; its report."""
    trainer.submit(step)
    return trainer.flush()[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """logprobs: float64, of all targets. ratios: s_i. num_embedded: tokens in the calls of the
    model's embedding, forward by forward."""

    logprobs: Tensor
    loss: float
    ratios: Tensor
    gradients: dict[str, Tensor]
    num_embedded: list[int]


def compute(trainer: MegatronTrainer, step: MicroStep) -> Computed:
    """One micro-step's gradient, outside any batch."""
    from gyre.cell_agent.trainer.model.packing import pack_micro_step

    packed = pack_micro_step(step, trainer.policy)
    with embedded_tokens(trainer) as counted:
        known = add_gradient(trainer, packed)
    return Computed(
        logprobs=known.policy.logprobs.double(),
        loss=known.result.loss.item(),
        ratios=torch.tensor(known.result.ratios),
        gradients=trainer.gradients(),
        num_embedded=counted,
    )


def add_gradient(trainer: MegatronTrainer, packed: PackedMicroStep) -> Evaluated:
    """Into zeroed buffers, in this thread and outside any batch."""
    from gyre.cell_agent.trainer.batch.clock import Clock
    from gyre.cell_agent.trainer.batch.headers import HeaderLine, Kind
    from gyre.cell_agent.trainer.batch.inbox import Item, Work
    from gyre.cell_agent.trainer.batch.stream import Stream, Trained

    nameless = MicroStep(
        batch="b", index=0, row_tokens=1, window_rows=1, normalizer=1, executions=(), rows=()
    )

    class Once:
        """A source of one micro-step."""

        def __init__(self) -> None:
            self.items: list[Item] = [Work(step=nameless, packed=packed), Kind.CLOSED]
            self.known: Evaluated | None = None

        def take(self, timeout_s: float | None) -> Item:
            return self.items.pop(0)

        def trained(self, trained: Trained) -> None:
            assert trained.problem == trained.defect == ""
            self.known = trained.evaluated

        def passed(self, work: Work) -> None:
            pass

        def stopped(self) -> None:
            pass

    trainer.model.zero_grad_buffer()
    source = Once()
    Stream(trainer.stage, HeaderLine(), OBJECTIVE, Clock(), trainer.device).run(source)
    assert source.known is not None
    return source.known


@contextmanager
def embedded_tokens(trainer: MegatronTrainer) -> Iterator[list[int]]:
    """How many tokens each call of the model's embedding is given."""
    counted: list[int] = []

    def count(module: torch.nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        counted.append(arguments[0].numel())

    with _hooked(trainer, count):
        yield counted


@contextmanager
def spoiled_from(trainer: MegatronTrainer, call: int) -> Iterator[None]:
    """The embedding answers NaN from its nth call on, as a defective device might."""
    calls = 0

    def spoil(module: torch.nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return output if calls < call else output * float("nan")

    with _hooked(trainer, spoil):
        yield


@contextmanager
def _hooked(
    trainer: MegatronTrainer,
    hook: Callable[[torch.nn.Module, tuple[Tensor], Tensor], Tensor | None],
) -> Iterator[None]:
    embedding = trainer.model.module.embedding.word_embeddings
    handle = embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
