"""One call's sampling, over however many attempts it takes: what to ask next, and what is kept."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from gyre.contracts.events.calls import CallRecorded, Moved, Span
from gyre.core.routing import Engine
from gyre.proxy.executions import Execution
from gyre.proxy.sampling.migration import Left
from gyre.proxy.sampling.streams import EngineStream, SamplingOrder
from gyre.proxy.sampling.tails import Tail, Tails
from gyre.proxy.watch import Signal


class GenerationFailed(Exception):
    """The turn cannot be had. retryable: whether asking again later may help."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class GenerationStopped(Exception):
    """Ended before the turn was whole: by the client, the deadline or the execution's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """num_prefilled, num_cached: tokens that the engine computed before it sampled, and those it
    had; None where it did not begin."""

    engine: Engine
    num_prefilled: int | None
    num_cached: int | None


@dataclass(slots=True, kw_only=True)
class Generation:
    """One call's sampling. Mutated by `Generator.run`, `keep` and `stop`.

    input_ids: context. deadline: on the event loop's clock. output_ids, logprobs, spans: kept over
    all attempts, finish: "stop" or "length" once whole. began, ended: on the event loop's clock;
    queue_s, first_token_s: from `began` to the first order to an engine and to its first token.
    tail: what the call goes on from, where its path was cached. left: what the last attempt may
    have pinned. first, last: attempts.
    """

    call: str
    execution: Execution
    index: int
    input_ids: array[int]
    max_new_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    deadline: float
    tail: Tail | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    num_cached: int = 0
    num_reroutes: int = 0
    stopped: str | None = None
    wake: Signal = field(default_factory=Signal)
    began: float = 0.0
    ended: float = 0.0
    queue_s: float | None = None
    first_token_s: float | None = None
    left: Left | None = None
    first: Attempt | None = None
    last: Attempt | None = None

    def stop(self, reason: str) -> None:
        """Ends the sampling; what was sampled stays in `output_ids`."""
        if self.stopped is None:
            self.stopped = reason
            self.wake.set()

    def order(self, extra_key: str | None = None) -> SamplingOrder:
        """What the next attempt asks for: context and kept tokens go in."""
        kept = len(self.output_ids)
        context = self.input_ids
        return SamplingOrder(
            rid=secrets.token_hex(16),
            execution=self.execution.id,
            input_ids=context + array("i", self.output_ids) if kept else context,
            max_new_tokens=self.max_new_tokens - kept,
            temperature=self.temperature,
            seed=_seed(self.execution.seed, self.index, kept),
            stop_token_ids=self.stop_token_ids,
            extra_key=extra_key,
        )

    def keep(self, engine: Engine, order: SamplingOrder, stream: EngineStream) -> None:
        """Adds what the attempt sampled, with its policy versions and cell."""
        sample = stream.sample()
        offset = len(self.output_ids)
        if offset == 0:
            self.num_cached = sample.num_cached
        if self.first_token_s is None and sample.token_ids and stream.first_event is not None:
            self.first_token_s = stream.first_event - self.began
        self.output_ids.extend(sample.token_ids)
        self.logprobs.extend(sample.logprobs)
        for span in sample.spans:
            _add_span(
                self.spans,
                Span(
                    start=offset + span.start,
                    end=offset + span.end,
                    version=span.version,
                    lineage=span.lineage,
                    cell=engine.cell,
                ),
            )
        if sample.finish in ("stop", "length"):
            self.finish = "stop" if sample.finish == "stop" else "length"
        elif self.output_ids and self.output_ids[-1] in self.stop_token_ids:
            self.finish = "stop"
        elif len(self.output_ids) >= self.max_new_tokens:
            self.finish = "length"
        self._note(engine, order, stream)

    def moved(self) -> Moved | None:
        """What a change of route between this call and the one before it cost."""
        if self.tail is None or self.first is None or self.first.num_cached is None:
            return None
        if not self.spans:
            return None
        weights = self.spans[0].lineage, self.spans[0].version
        return self.tail.moved(self.first.engine.cell, weights, self.first.num_cached)

    def end_at(self, tails: Tails, event: CallRecorded) -> None:
        """The call is in the log as `event`: its end is what the next one goes on from."""
        engine = None if self.last is None else self.last.engine
        tails.ended(event, engine, self.tail, self.ended)

    def _note(self, engine: Engine, order: SamplingOrder, stream: EngineStream) -> None:
        begun = stream.first_event is not None
        num_cached = stream.sample().num_cached if begun else None
        num_prefilled = None if num_cached is None else len(order.input_ids) - num_cached
        self.last = Attempt(engine=engine, num_prefilled=num_prefilled, num_cached=num_cached)
        self.first = self.first or self.last


def _seed(seed: int, index: int, kept: int) -> int:
    """31 bits from (execution's seed, call, tokens kept): a retry of the run samples the same."""
    digest = sha256(f"{seed}.{index}.{kept}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _add_span(spans: list[Span], span: Span) -> None:
    last = spans[-1] if spans else None
    if last is not None and last.model_copy(update={"end": span.end, "start": span.start}) == span:
        spans[-1] = last.model_copy(update={"end": span.end})
    else:
        spans.append(span)
