"""The engine's loop body: admit, decode, sample, finish; and every command between steps.

Owned by the model thread. A step is: prefill what fits (a prefill also samples the request's
first token), then one decode of all running requests, or, under an emulated speed, of those whose
next token is due. Commands run between steps, so each token belongs to exactly one weight version.

    waiting --prefill--> running --finish--> done
       ^                    |
       +----- retract ------+      tokens kept, KV recomputed by the next prefill

Invariants (tests/unit/test_engine_scheduler.py):
- a decode in a batch equals the decode alone;
- `len(running) <= num_slots`; a request is in `waiting`, in `running`, or finished;
- no cached KV is used under other weights than it was computed under; after weights are replaced
  with a flush, none is left.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from torch import Tensor

from gyre.adapters.failpoints import failpoint
from gyre.cell_agent.engine.local.errors import BadRequestError, UnavailableError, WeightsError
from gyre.cell_agent.engine.local.pace import Pace
from gyre.cell_agent.engine.local.pins import Pins
from gyre.cell_agent.engine.local.recording import record, record_prompt
from gyre.cell_agent.engine.local.request import (
    ABORTED_RUNNING,
    ABORTED_WAITING,
    Finish,
    Request,
)
from gyre.cell_agent.engine.local.runner import ModelRunner, prompt_logprobs_from
from gyre.cell_agent.engine.local.sampling import SamplingBatch, build_batch, sample, seeded_draw
from gyre.cell_agent.engine.local.stats import EngineStats
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.local.weights import State, check_state
from gyre.cell_agent.process_memory import give_back
from gyre.core.policy_weights import weight_shapes

NEVER = float("-inf")


class Scheduler:
    """Queues, pause state and weights version around a `ModelRunner`.

    `clock` gives seconds (any origin, monotonic); `rng` the draws of unseeded requests; `pace` an
    emulated speed, None for the machine's own.
    """

    def __init__(
        self,
        *,
        runner: ModelRunner,
        codec: TextCodec,
        weight_version: str,
        clock: Callable[[], float],
        rng: random.Random,
        pace: Pace | None = None,
    ) -> None:
        self.runner = runner
        self.pins = Pins(runner, clock)
        self.paused = False
        self.waiting: deque[Request] = deque()
        self.stats = EngineStats()
        self._codec = codec
        self._clock = clock
        self._rng = rng
        self._pace = pace
        self._news: dict[int, Request] = {}
        self._batch: SamplingBatch | None = None
        self._num_weights = 0
        self.weight_version = weight_version

    @property
    def weight_version(self) -> str:
        """Name of the weights in service."""
        return self._weight_version

    @weight_version.setter
    def weight_version(self, version: str) -> None:
        # Counted too: weights may be replaced without a new name.
        self._num_weights += 1
        self._weight_version = version
        self.runner.weights = (version, self._num_weights)

    @property
    def running(self) -> list[Request]:
        """Requests that hold a slot, in slot order."""
        return self.runner.running

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return not (self.paused or self.runner.lacks) and bool(self.waiting or self.running)

    def work_in_s(self) -> float | None:
        """How long until a step would do something: 0 now, None when nothing is to be done."""
        if not self.has_work:
            return None
        if self._pace is None or self._admissible:
            return 0.0
        return max(0.0, self._pace.next_due_s(self.running) - self._clock())

    @property
    def _admissible(self) -> bool:
        return bool(self.waiting) and len(self.running) < self.runner.capacity.num_slots

    def take_news(self) -> list[Request]:
        """Requests that got a token or ended since the last call."""
        news = list(self._news.values())
        self._news.clear()
        return news

    def submit(self, request: Request) -> None:
        """Queue a request; raises UnavailableError while memory is released."""
        if self.runner.lacks:
            raise UnavailableError(self.runner.lacks)
        self.waiting.append(request)

    def step(self) -> None:
        """One round; does nothing while paused, or while memory is released."""
        if self.paused or self.runner.lacks:
            return
        while self._admissible:
            self._admit(self.waiting.popleft())
        due = self.running if self._pace is None else self._pace.due(self.running, self._clock())
        if due:
            self._decode(list(due))

    def abort(self, rid: str, *, all_requests: bool = False, pin_s: float | None = None) -> None:
        """End every request whose rid starts with `rid` (or all), keeping what it produced; with
        `pin_s`, keeping its cached prefix too for so many seconds."""
        pin_until = None if pin_s is None else self._clock() + pin_s
        for request in [*self.waiting, *self.running]:
            if all_requests or request.rid.startswith(rid):
                waits = request in self.waiting
                if waits:
                    self.waiting.remove(request)
                message = ABORTED_WAITING if waits else ABORTED_RUNNING
                self._end(request, Finish(type="abort", message=message))
                if pin_until is not None:
                    self.pins.add(request, pin_until)

    def withdraw(self, request: Request) -> None:
        """End one request whose client left; nothing to do when it ended meanwhile."""
        if request.finish is not None:
            return
        if request in self.waiting:
            self.waiting.remove(request)
        self._end(request, Finish(type="abort", message=ABORTED_RUNNING))

    def pause(self, *, retract: bool) -> None:
        """Stop stepping; `retract` also requeues what runs, in front, in arrival order."""
        self.paused = True
        if not retract:
            return
        for request in sorted(self.running, key=lambda item: item.created_at, reverse=True):
            self.runner.release(request, keep=False)
            request.num_retractions += 1
            self.waiting.appendleft(request)
        self._batch = None

    def resume(self) -> None:
        """Step again."""
        self.paused = False
        if self._pace is not None:
            self._pace.hold(self.running, self._clock())

    def flush(self) -> bool:
        """Drop cached prefixes; refused (False) while requests run, or wait unpaused."""
        if self.running or (self.waiting and not self.paused):
            return False
        if self.runner.kv_allocated:
            self.pins.clear()
            self.runner.flush()
        return True

    def replace_weights(self, state: State, *, complete: bool, version: str | None) -> None:
        """Load checked weights in place; raises WeightsError with nothing changed."""
        model = self.runner.model
        if not model.parameters:
            raise WeightsError("the weights' memory is released: take it again first")
        check_state(state, weight_shapes(model.config), complete=complete)
        model.load(state, after_each=partial(failpoint, "engine.mid_update"))
        self.weight_version = self.weight_version if version is None else version

    def release_memory(self, *, kv_cache: bool = True, weights: bool = False) -> None:
        """Give memory back. Unlike SGLang, which dies, a busy engine refuses; requests that wait
        behind a pause make none."""
        if self.running or (self.waiting and not self.paused):
            raise BadRequestError(
                "release_memory_occupation needs an idle engine: "
                f"{len(self.running)} running, {len(self.waiting)} waiting"
            )
        if kv_cache:
            self.pins.clear()
            self.runner.release_kv()
        if weights:
            self.runner.model.release()
        give_back()

    def resume_memory(self, *, kv_cache: bool = True, weights: bool = False) -> None:
        """Take it again: the cache empty, the weights to be loaded."""
        if weights and not self.runner.model.parameters:
            self.runner.model.allocate()
        if kv_cache and not self.runner.kv_allocated:
            self.runner.allocate_kv()

    def _admit(self, request: Request) -> None:
        owed = prompt_logprobs_from(request)
        logits = self.runner.prefill(request)
        self._batch = None
        if request.started_at is None:
            request.started_at = self._clock()
            self.stats.prompt_tokens += len(request.prompt)
            self.stats.cached_tokens += request.cached_tokens
        if owed is not None:
            record_prompt(request, owed, logits)
        if request.max_new_tokens == 0:
            request.first_token_at = self._clock()
            self._end(request, Finish(type="length", length=0))
            return
        batch = build_batch([request.asked.sampling], logits.shape[-1])
        self._sample([request], logits[-1:], batch)
        if self._pace is not None:
            self._pace.begin(request, self._clock())

    def _decode(self, due: list[Request]) -> None:
        """All slots are computed, since a batch is a view of them; who is not due computes the same
        row again later, and nothing of it shows."""
        logits = self.runner.decode()
        if len(due) < len(self.running):
            logits = logits[[self.running.index(request) for request in due]]
            batch = build_batch([r.asked.sampling for r in due], logits.shape[-1])
        else:
            if self._batch is None:
                self._batch = build_batch([r.asked.sampling for r in due], logits.shape[-1])
            batch = self._batch
        self._sample(due, logits, batch)

    def _sample(self, requests: list[Request], logits: Tensor, batch: SamplingBatch) -> None:
        """Choose and record one token for each request; logits [n, V]."""
        for row, request in enumerate(requests):
            self._adjust(logits[row], request)
        ids, logprobs = sample(logits, batch, [self._draw(request) for request in requests])
        values = logprobs.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
        now = self._clock()
        for row, (request, token) in enumerate(zip(requests, ids.tolist(), strict=True)):
            record(request, token, values[row], logprobs[row : row + 1], self.weight_version)
            if request.first_token_at is None:
                request.first_token_at = now
            finish = self._finish_after(request, token)
            if finish is not None:
                self._end(request, finish)
            elif request.asked.stream:
                self._news[id(request)] = request
        self.stats.note_tokens(len(requests), now)

    def _adjust(self, logits: Tensor, request: Request) -> None:
        """Apply `logit_bias` and hold back stop tokens below `min_new_tokens`, in place."""
        sampling = request.asked.sampling
        for token_id, bias in sampling.logit_bias:
            logits[token_id] += bias
        if len(request.output_ids) < sampling.min_new_tokens:
            logits[list(request.stop_token_ids)] = NEVER

    def _draw(self, request: Request) -> float:
        seed = request.asked.sampling.sampling_seed
        if seed is None:
            return self._rng.random()
        return seeded_draw(seed, len(request.output_ids))

    def _finish_after(self, request: Request, token: int) -> Finish | None:
        """Stop string, then stop token, then length: SGLang's order."""
        sampling = request.asked.sampling
        if sampling.stop:
            matched = self._codec.matched_stop_string(request)
            if matched is not None:
                return Finish(type="stop", matched=matched)
        if not sampling.ignore_eos and token in request.stop_token_ids:
            return Finish(type="stop", matched=token)
        if len(request.output_ids) >= request.max_new_tokens:
            return Finish(type="length", length=request.max_new_tokens)
        return None

    def _end(self, request: Request, finish: Finish) -> None:
        if request in self.running:
            self.runner.release(request, keep=bool(request.output_ids))
            self._batch = None
        request.last_version = self.weight_version
        request.finished_at = self._clock()
        request.finish = finish
        self._news[id(request)] = request
        self.stats.note_finished(request)
