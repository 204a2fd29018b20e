"""Calls of executions: from a request to a committed answer, and what becomes of it.

consumes: requests with a checked identity; the facts' effects on open calls
produces: call_recorded before any content reaches the client; call_undelivered if it does not
waits for: the generation; the log's acknowledgement; a retry of what nobody waits for
is unblocked by: the engine, a change of route, the end of the grace, the end of the execution

Invariants:
- a call is answered only after its call_recorded is acknowledged;
- one execution's events have one writer and follow each other in its log;
- an equal request gets the call that a client left, while it is held; else it is a call of its own
  (`deliveries`).
"""

from __future__ import annotations

import asyncio

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.failpoints import failpoint
from gyre.adapters.logging import get_logger
from gyre.contracts.events.calls import CallRecorded, CallRerouted
from gyre.core.matching import Plan, SentTurn
from gyre.core.origins import Origin
from gyre.proxy.codecs.encoding import Codec, ParsedTurn
from gyre.proxy.faults import attempt_over, not_sampled, overloaded, unrecorded
from gyre.proxy.holding import attach, give_up, record_undelivered
from gyre.proxy.limits import Limits
from gyre.proxy.live import Live, OpenCall, Served, Waiter, Whole
from gyre.proxy.origins import request_facts
from gyre.proxy.planning import is_strange, opening_of, plan_of
from gyre.proxy.records import recorded
from gyre.proxy.requests import Answer, ContextFull, Fault, Request, TokenLogprob
from gyre.proxy.sampling.course import Generation, GenerationFailed, GenerationStopped
from gyre.proxy.sampling.generation import Generator
from gyre.proxy.turns import as_answer, num_reasoning_tokens, sampled_turn, sent_turn


class Moved(Exception):
    """Another process has written to the execution's log: it has to be read again."""


class Calls:
    """Begins, finishes and abandons calls. Mutates the `Live` it is given, and its count.

    num_running: calls that are being sampled or recorded, over all executions.
    """

    def __init__(self, generator: Generator, clock: Clock, limits: Limits) -> None:
        self._generator = generator
        self._clock = clock
        self._limits = limits
        self.num_running = 0

    async def begin(
        self,
        live: Live,
        attempt: int,
        request: Request,
        served: Served,
        waiter: Waiter,
        *,
        api: str = "",
        is_retry: bool = False,
    ) -> OpenCall:
        """Starts a call, or finds the one that the request repeats. `waiter` waits for it then.

        Raises ContextFull, Fault (overloaded), Moved, EventLogError.
        """
        async with live.asking:
            return await self._begin(live, attempt, request, served, waiter, api, is_retry=is_retry)

    async def _begin(
        self,
        live: Live,
        attempt: int,
        request: Request,
        served: Served,
        waiter: Waiter,
        api: str,
        *,
        is_retry: bool,
    ) -> OpenCall:
        codec = served.codec
        opening = opening_of(live, request)
        origin = live.read_origin(request_facts(request, opening))
        plan = await plan_of(live, attempt, request, codec, origin, opening)
        if live.log.lost or (is_strange(live, plan) and not await live.log.is_current()):
            raise Moved
        if attempt <= live.over_attempt:
            raise attempt_over()
        key = (attempt, plan.parent, request.tool_calls)
        found = live.deliveries.find(key, is_retry=is_retry)
        if found is not None:
            return attach(live, live.open[found], waiter)
        call = self._answered(live, attempt, plan, origin, request, codec, is_retry=is_retry)
        if call is not None:
            live.deliveries.open(call.id, key, waiter, committed=True)
            live.keep(call)
            return call
        try:
            room = self._room(live, plan, served)
        except Fault:
            live.matcher.undo(plan)
            raise
        live.num_chars = max(live.num_chars, request.num_chars)
        for replaced in live.deliveries.stopping(key):
            live.open[replaced].superseded = True
        generation = _generation(live, plan, served, room)
        live.deliveries.open(generation.call, key, waiter)
        call = OpenCall(
            id=generation.call,
            attempt=attempt,
            plan=plan,
            origin=origin,
            generation=generation,
            task=asyncio.create_task(self._run(live, generation, request, codec, api)),
        )
        call.task.add_done_callback(lambda task: _ended(call, task))
        live.keep(call)
        live.running.add(call.id)
        self.num_running += 1
        return call

    def leave(
        self, live: Live, call: OpenCall, waiter: Waiter, *, delivered: bool, reason: str
    ) -> None:
        """`waiter` waits no more. Without the whole answer the call is held for a retry."""
        mine = live.deliveries.has(call.id, waiter)
        held = live.deliveries.leave(call.id, waiter, delivered=delivered)
        if delivered and mine:
            live.delivered.append(call.id)
            live.unsure.discard(call.id)
            live.drop(call.id)
        elif held and (call.attempt <= live.over_attempt or self._limits.retry_grace_s == 0):
            give_up(live, call, reason)
        elif held:
            loop = asyncio.get_running_loop()
            grace_s = self._limits.retry_grace_s
            call.grace = loop.call_later(grace_s, give_up, live, call, reason)

    def end_attempts(self, live: Live, attempt: int, reason: str) -> None:
        """Attempts up to this one are over: their calls stop, nothing is held for them."""
        live.over_attempt = max(live.over_attempt, attempt)
        for call in [call for call in live.open.values() if call.attempt <= attempt]:
            if call.id in live.running and call.generation is not None and not call.is_recorded:
                live.deliveries.stop(call.id)
                call.generation.stop(reason)
            else:
                give_up(live, call, reason)

    async def close(self, live: Live, reason: str) -> None:
        """Ends every call; returns when all that is to be said of them is in the log. No new one
        begins: the key of a terminated execution is refused."""
        self.end_attempts(live, live.execution.attempt, reason)
        await live.quiet.wait()

    def answer(self, call: OpenCall, request: Request, codec: Codec) -> Answer:
        """What `request` is answered, once the call's turn is sampled."""
        whole = call.whole
        assert whole is not None
        logprobs = zip(whole.output_ids, whole.logprobs, strict=True) if request.logprobs else ()
        return as_answer(
            call.id,
            whole.turn,
            created=whole.created,
            finish=whole.finish,
            num_input=call.plan.num_input_tokens,
            num_output=len(whole.output_ids),
            num_cached=whole.num_cached,
            num_reasoning=num_reasoning_tokens(whole.turn, whole.output_ids, codec.text),
            logprobs=tuple(
                TokenLogprob(token=codec.token_text(token), logprob=logprob)
                for token, logprob in logprobs
            ),
        )

    def _room(self, live: Live, plan: Plan, served: Served) -> int:
        """Tokens that the answer may have. Raises ContextFull, Fault (overloaded)."""
        context_tokens = served.spec.model.context_tokens
        room = context_tokens - plan.num_input_tokens
        if room < 1:
            raise ContextFull(num_tokens=plan.num_input_tokens, context_tokens=context_tokens)
        if len(live.running) >= self._limits.max_execution_calls:
            raise overloaded(f"the execution has {len(live.running)} calls under way")
        if self.num_running >= self._limits.max_calls:
            raise overloaded(f"{self.num_running} calls are under way")
        return room

    async def _run(
        self, live: Live, generation: Generation, request: Request, codec: Codec, api: str
    ) -> Whole:
        call = live.open[generation.call]
        committed = False
        try:
            failure = await self._sample(live, generation)
            opening = live.matcher.tree.node(call.plan.parent)
            turn = sampled_turn(codec, request, opening, generation.output_ids)
            async with live.asking:
                event = recorded(live, call, generation, request, turn, failure, api)
            if failure is None:
                call.whole = self._whole(generation, turn)
                _tell(live, call)
            await live.log.append(event, call.id)
            failpoint("proxy.after_append")
            async with live.asking:
                if failure is None:
                    committed = True
                    self._commit(live, call, generation)
                    await asyncio.sleep(0)  # the answer goes out, and then the call is taken in
                _take_in(live, event, generation, sent_turn(call.id, turn) if committed else None)
            live.delivered = [told for told in live.delivered if told not in event.delivered]
            if failure is not None:
                raise failure
            assert call.whole is not None
            return call.whole
        except EventLogError as error:
            raise unrecorded(error, sealed=live.log.sealed) from error
        finally:
            _tell(live, call)  # this task ends before whoever is told looks
            self.num_running -= 1
            live.running.discard(call.id)
            if not committed:
                live.deliveries.failed(call.id)
                live.drop(call.id)

    def _commit(self, live: Live, call: OpenCall, generation: Generation) -> None:
        call.is_recorded = True
        if not live.deliveries.committed(call.id):
            record_undelivered(live, call, generation.stopped or "the client left")
        _tell(live, call)

    def _whole(self, generation: Generation, turn: ParsedTurn) -> Whole:
        return Whole(
            turn=turn,
            output_ids=tuple(generation.output_ids),
            logprobs=tuple(generation.logprobs),
            finish=generation.finish or "stop",
            num_cached=generation.num_cached,
            created=int(self._clock.now()),
        )

    async def _sample(self, live: Live, generation: Generation) -> Fault | None:
        """Fills `generation`; why it is not whole, if it is not. Raises EventLogError."""

        async def report(event: CallRerouted) -> None:
            await live.log.append(event, generation.call, generation.num_reroutes)

        try:
            await self._generator.run(generation, report)
        except GenerationFailed as error:
            return not_sampled(error)
        except GenerationStopped as error:
            return Fault(str(error), status=503, code="call_aborted")
        return None

    def _answered(
        self,
        live: Live,
        attempt: int,
        plan: Plan,
        origin: Origin,
        request: Request,
        codec: Codec,
        *,
        is_retry: bool,
    ) -> OpenCall | None:
        """The equal call whose answer is in the log and, as the request says or a process that died
        leaves open, did not arrive: it is given again, not sampled again."""
        tree = live.matcher.tree
        for node in reversed(tree.children(plan.parent)):
            sampled = node.sampled
            if sampled is None or sampled.attempt != attempt or sampled.status != "committed":
                continue
            gone = sampled.call in live.undelivered or sampled.call in live.open
            if gone or tree.children(node.id) or not (is_retry or sampled.call in live.unsure):
                continue
            stopped = node.token_ids[-1:] and node.token_ids[-1] in codec.stop_token_ids
            whole = Whole(
                turn=sampled_turn(codec, request, tree.node(plan.parent), node.token_ids),
                output_ids=tuple(node.token_ids),
                logprobs=tuple(sampled.logprobs),
                finish="stop" if stopped else "length",
                num_cached=0,
                created=int(self._clock.now()),
            )
            task: asyncio.Future[Whole] = asyncio.get_running_loop().create_future()
            task.set_result(whole)
            return OpenCall(
                id=sampled.call,
                attempt=attempt,
                plan=plan,
                origin=origin,
                generation=None,
                task=task,
                whole=whole,
                is_recorded=True,
            )
        return None


def _ended(call: OpenCall, task: asyncio.Future[Whole]) -> None:
    """Whoever asked may be gone by then: a failure is in the log, or is told here."""
    error = None if task.cancelled() else task.exception()
    if error is not None and call.is_recorded:
        get_logger().error("call_not_taken_down", call=call.id, error=repr(error))


def _take_in(
    live: Live, event: CallRecorded, generation: Generation, sent: SentTurn | None
) -> None:
    """The live tree knows what the log has. sent: what the client was told, if anything."""
    try:
        live.matcher.recorded(event)
        generation.end_at(live.tails, event)
        if sent is not None:
            live.matcher.sent(event.node, sent)
    except Exception:
        live.log.lost = True  # the execution is read again before its next call
        raise


def _tell(live: Live, call: OpenCall) -> None:
    waiter = live.deliveries.waiter(call.id)
    if waiter is not None:
        waiter.news.set()


def _generation(live: Live, plan: Plan, served: Served, room: int) -> Generation:
    index, live.next_index = live.next_index, live.next_index + 1
    rollout = served.spec.rollout
    return Generation(
        call=f"{live.execution.id}-c{index:05d}",
        execution=live.execution,
        index=index,
        input_ids=live.matcher.tree.path_tokens(plan.parent),
        max_new_tokens=min(rollout.max_new_tokens, room),
        temperature=rollout.temperature,
        stop_token_ids=served.codec.stop_token_ids,
        deadline=asyncio.get_running_loop().time() + rollout.call_timeout_s,
        tail=live.tails.before(live.matcher.tree, plan.parent),
    )
