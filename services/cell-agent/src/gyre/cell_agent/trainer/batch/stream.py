"""Streaming 1F1B over a cell's pipeline: one warm-up and one drain a batch, however many
micro-steps come and whenever they come. A cell of one stage is the same loop, with nobody to hand
on to.

Megatron's schedules want the number of micro-batches before they start; a stream does not know it.
Its P2P communicator and its backward step are used as they are, in this order at a stage that is r
stages from the last: forward of unit after unit, and as soon as r + 1 are in flight each forward is
followed by the backward of the oldest. So gradients add up in the order of Megatron's own schedule.

- The unit of the stream is a forward unit, which a normal micro-step is one of: when the last stage
  has its logits it has every target of its executions, and s_i and m_i of eq. (5)-(6).
- A micro-step of several units needs them all first. What is in flight goes backward, the units go
  forward without gradient, and then they are streamed with the slopes of the loss so found. Forward
  passes alone, among units in flight, would have two stages wait for each other's sends.
- No objective stops the schedule, where other stages would wait for this one. What it refuses goes
  backward as a zero gradient and is noted: a loss that is not finite in the batch's record, so that
  the step is not applied; targets that are none in `Trained.defect`.

Invariants:
- every rank of the cell takes the same micro-steps in the same order and stops at the same unit:
  the leader says which is next, and each compares with its own;
- when `Source.stopped` is called, nothing is in flight and every gradient of what was taken is in
  the buffers, on this rank;
- nothing divides a gradient.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gyre.cell_agent.trainer.batch.clock import Clock
from gyre.cell_agent.trainer.batch.headers import Header, HeaderLine, Kind, lost_when_it_fails
from gyre.cell_agent.trainer.batch.inbox import Item, Work
from gyre.cell_agent.trainer.batch.passes import Evaluated, evaluate, unit_policy
from gyre.cell_agent.trainer.megatron.megatron_core import backward_step, deallocate_output_tensor
from gyre.cell_agent.trainer.model.layout import TokenShares
from gyre.cell_agent.trainer.model.packing import ForwardUnit, PackedMicroStep
from gyre.cell_agent.trainer.model.stages import Stage
from gyre.core.objective import ObjectiveSettings
from gyre.objective import NonFiniteLoss, ObjectiveError, TokenPolicy

# What is in flight when the next micro-step is late goes backward after this time: no rank waits
# for another's send as long as an execution takes.
STARVED_S = 10.0

_Answer = TypeVar("_Answer")


@dataclass(slots=True, kw_only=True)
class Trained:
    """What the last stage knows of a micro-step when its last unit has gone forward. evaluated:
    None where there was no target, or the objective refused. problem: its loss is not finite.
    defect: its targets do not form whole executions, or no objective has that name."""

    work: Work
    evaluated: Evaluated | None = None
    problem: str = ""
    defect: str = ""


class Source(Protocol):
    """Where a stream takes from, and whom it tells."""

    def take(self, timeout_s: float | None) -> Item | None: ...

    def trained(self, trained: Trained) -> None:
        """On the last stage alone, before the backward of the micro-step's last unit."""

    def passed(self, work: Work) -> None:
        """This stage has computed all of it."""

    def stopped(self) -> None:
        """Nothing is in flight on this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A unit between its forward and its backward. received: hidden states of the stage before,
    None on the first. output: hidden states for the next; on the last stage what the backward
    starts from, None where it is refused. ends: the micro-step whose last unit this is."""

    unit: ForwardUnit
    received: Tensor | None
    output: Tensor | None
    ends: Work | None


class Stream:
    """One batch's. All ranks of the cell run it at once, each on its own part of the model."""

    def __init__(
        self,
        stage: Stage,
        line: HeaderLine,
        settings: ObjectiveSettings,
        clock: Clock,
        device: torch.device,
    ) -> None:
        """device: that the model computes on. Only the thread that runs the stream touches it."""
        self.clock = clock
        self._device = device
        self._stage, self._line, self._settings = stage, line, settings
        self._window = stage.count - stage.index
        self._held: deque[_Held] = deque()
        self._filled = False
        self._ahead: Header | None = None

    def run(self, source: Source) -> None:
        """Until the source is closed. Raises StageLost: another rank of the cell is gone."""
        while True:
            item = self._next(source)
            started = time.perf_counter()
            if isinstance(item, Work):
                self.clock.took(item)
                self._train(item, source)
                self.clock.keep_pace()
            else:
                self._drain(source)
            spent = time.perf_counter() - started
            self.clock.busy_s += spent
            if isinstance(item, Work):
                self.clock.slowest_s = max(self.clock.slowest_s, spent)
            if item in (Kind.DRAIN, Kind.CLOSED):
                source.stopped()
            if item is Kind.CLOSED:
                return

    # Agreement

    def _next(self, source: Source) -> Item:
        if self._line.leads:
            item = source.take(STARVED_S if self._held else None)
            if isinstance(item, Work):
                return item
            self._line.tell(Header(kind=item or Kind.PAUSE))
            return item or Kind.PAUSE
        header = self._line.hear()
        if header.kind is Kind.PAUSE:
            return Kind.PAUSE
        item = source.take(None)
        if isinstance(item, Work):
            self._ahead = header
            return item
        assert item is not None
        self._same(header, Header(kind=item))
        return item

    def _agree(self, own: Header) -> None:
        """The leader says what it computes next, the others make sure that they do too."""
        if self._line.leads:
            self._line.tell(own)
            return
        heard, self._ahead = self._ahead or self._line.hear(), None
        self._same(heard, own)

    def _same(self, heard: Header, own: Header) -> None:
        if heard != own:
            raise RuntimeError(f"the cell's ranks are out of step: told {heard}, here {own}")

    # Units

    def _train(self, work: Work, source: Source) -> None:
        if work.packed is None:
            self._agree(Header(kind=Kind.UNIT, index=work.step.index))
            if self._stage.is_last:
                source.trained(Trained(work=work))
            source.passed(work)
            return
        packed = work.packed.to(self._device)
        work = replace(work, packed=packed)
        trained = Trained(work=work)
        if len(packed.units) > 1:
            self._forward_only(packed, trained, source)
        for number, unit in enumerate(packed.units):
            self._agree(_header(Kind.UNIT, work, number))
            ends = number == len(packed.units) - 1
            held = self._forward(packed, unit, trained, work if ends else None)
            if self._stage.is_last and ends:
                source.trained(trained)
            self._push(held, source)

    def _forward_only(self, packed: PackedMicroStep, trained: Trained, source: Source) -> None:
        policies: list[TokenPolicy] = []
        for number, unit in enumerate(packed.units):
            self._agree(_header(Kind.FORWARD, trained.work, number))
            # Only now: what is in flight comes back when all ranks know that it has to.
            self._drain(source)
            with torch.no_grad():
                _, output = self._through(unit)
                if self._stage.is_last:
                    policies.append(unit_policy(packed, unit, output))
                else:
                    self._to(self._stage.communicator.send_forward, output, False)
        if self._stage.is_last:
            self._evaluate(packed, policies, trained)

    def _forward(
        self, packed: PackedMicroStep, unit: ForwardUnit, trained: Trained, ends: Work | None
    ) -> _Held:
        received, output = self._through(unit)
        start: Tensor | None = output
        if self._stage.is_last:
            policy = unit_policy(packed, unit, output)
            if len(packed.units) == 1:
                self._evaluate(packed, [policy], trained)
            start = _backward_start(unit, policy, trained)
        return _Held(unit=unit, received=received, output=start, ends=ends)

    def _through(self, unit: ForwardUnit) -> tuple[Tensor | None, Tensor]:
        """What came from the stage before, and what this one makes of it."""
        stage = self._stage
        received = self._to(stage.communicator.recv_forward, self._shape(unit), stage.is_first)
        stage.model.module.set_input_tensor(received)
        return received, stage.model(unit.tree, unit.predictors)

    def _evaluate(
        self, packed: PackedMicroStep, policies: Sequence[TokenPolicy], trained: Trained
    ) -> None:
        try:
            trained.evaluated = evaluate(packed, policies, self._settings)
        except NonFiniteLoss as error:
            trained.problem = str(error)
        except ObjectiveError as error:
            trained.defect = str(error)

    # 1F1B

    def _push(self, held: _Held, source: Source) -> None:
        """Hands the unit on; with the window full, the oldest goes backward."""
        stage = self._stage
        self.clock.num_warmups += not self._filled
        self._filled = True
        self._held.append(held)
        gradient = None
        full = len(self._held) == self._window
        if not full:
            self._to(stage.communicator.send_forward, held.output, stage.is_last)
        elif not stage.is_last:
            shape = self._shape(self._held[0].unit)
            send = stage.communicator.send_forward_recv_backward
            gradient = self._to(send, held.output, shape, False)
        if not stage.is_last:
            # From here on only the graph behind it is needed, not its values.
            deallocate_output_tensor(held.output, stage.model.config.deallocate_pipeline_outputs)
        if full:
            self._backward(self._held.popleft(), gradient, source)

    def _drain(self, source: Source) -> None:
        stage = self._stage
        while self._held:
            shape = self._shape(self._held[0].unit)
            gradient = self._to(stage.communicator.recv_backward, shape, stage.is_last)
            self._backward(self._held.popleft(), gradient, source)
        self._filled = False

    def _backward(self, held: _Held, gradient: Tensor | None, source: Source) -> None:
        stage = self._stage
        if held.output is not None:
            kind, config = stage.model.module.model_type, stage.model.config
            to_received = backward_step(held.received, held.output, gradient, kind, config)
        else:
            to_received = None if held.received is None else torch.zeros_like(held.received)
        self._to(stage.communicator.send_backward, to_received, stage.is_first)
        if held.ends is not None:
            source.passed(held.ends)

    def _shape(self, unit: ForwardUnit) -> tuple[int, int, int]:
        """Of the hidden states that this rank hands on."""
        num_tokens = TokenShares.own().hidden(unit.tree.num_tokens)
        return num_tokens, 1, self._stage.model.config.hidden_size

    def _to(self, exchange: Callable[..., _Answer], *arguments: object) -> _Answer:
        """One of the communicator's. Raises StageLost."""
        return lost_when_it_fails(lambda: exchange(*arguments))


def _header(kind: Kind, work: Work, number: int) -> Header:
    assert work.packed is not None
    num_tokens = work.packed.units[number].num_tokens
    return Header(kind=kind, index=work.step.index, unit=number, num_tokens=num_tokens)


def _backward_start(unit: ForwardUnit, policy: TokenPolicy, trained: Trained) -> Tensor | None:
    """The loss as far as its derivative goes: the unit's log-probabilities by their slopes."""
    if trained.evaluated is None:
        return None
    start = policy.logprobs @ trained.evaluated.slopes[unit.targets]
    if not start.isfinite():
        # The first pass was sound: what computes here does not give the same twice.
        trained.problem = "not finite: log-probabilities of the second pass"
        return None
    return start
