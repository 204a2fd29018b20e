"""Calls of executions: from a request to a committed answer, and what becomes of it.

consumes: requests with a checked identity; the facts' effects on open calls
produces: call_recorded before any content reaches the client; call_undelivered if it does not
waits for: the generation; the log's acknowledgement
is unblocked by: the engine, a change of route, the client's leaving, the end of the execution

Invariants:
- a call is answered only after its call_recorded is acknowledged;
- one execution's events have one writer and follow each other in its log;
- a retry (the client says so) joins the equal call that still runs, or gets the answer of the one
  that is in the log and was not continued; without that mark two equal requests are two calls.
"""

from __future__ import annotations

import asyncio

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLogError, EventTooLarge, SequenceConflict
from gyre.adapters.failpoints import failpoint
from gyre.adapters.logging import get_logger
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallUndelivered
from gyre.core.matching import Plan
from gyre.core.tree import sampled_node_id
from gyre.proxy.encoding import Codec, ParsedTurn
from gyre.proxy.generation import (
    Generation,
    GenerationFailed,
    GenerationStopped,
    Generator,
)
from gyre.proxy.live import Live, OpenCall, Served
from gyre.proxy.requests import Answer, ContextFull, Fault, Request, TokenLogprob
from gyre.proxy.turns import as_answer, sent_turn


class Calls:
    """Begins, finishes and abandons calls. Mutates the `Live` it is given, nothing else."""

    def __init__(self, generator: Generator, clock: Clock) -> None:
        self._generator = generator
        self._clock = clock

    def begin(
        self, live: Live, attempt: int, request: Request, served: Served, *, is_retry: bool
    ) -> OpenCall | Answer:
        """Starts a call, or joins the one that the request repeats, or finds its answer.

        Raises ContextFull.
        """
        codec = served.codec
        plan = live.matcher.plan(request.messages, request.tools, attempt=attempt, encoder=codec)
        if is_retry:
            known = _running(live, attempt, plan) or self._answered(live, attempt, plan, codec)
            if known is not None:
                return known
        room = served.spec.model.context_tokens - plan.num_input_tokens
        if room < 1:
            raise ContextFull(
                num_tokens=plan.num_input_tokens, context_tokens=served.spec.model.context_tokens
            )
        call = self._open(live, attempt, plan, served, room)
        call.task = asyncio.create_task(self._run(live, call, request, codec))
        # Whoever asked may be gone by then; the failure is in the log either way.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return call

    def leave(self, live: Live, call: OpenCall, *, delivered: bool, reason: str) -> None:
        """A request stops waiting for `call`. The last one that leaves without the whole answer
        aborts it, or has it recorded as undelivered."""
        call.num_waiting -= 1
        assert call.task is not None
        if delivered or call.num_waiting > 0:
            return
        if not call.task.done():
            call.generation.stop(reason)
        elif not call.task.cancelled() and call.task.exception() is None:
            _give_up(live, call, reason)

    def _open(self, live: Live, attempt: int, plan: Plan, served: Served, room: int) -> OpenCall:
        index, live.next_index = live.next_index, live.next_index + 1
        call_id = f"{live.execution.id}-c{index:05d}"
        rollout = served.spec.rollout
        generation = Generation(
            call=call_id,
            execution=live.execution,
            index=index,
            input_ids=live.matcher.tree.path_tokens(plan.parent),
            max_new_tokens=min(rollout.max_new_tokens, room),
            temperature=rollout.temperature,
            stop_token_ids=served.codec.stop_token_ids,
            deadline=asyncio.get_running_loop().time() + rollout.call_timeout_s,
        )
        call = OpenCall(id=call_id, attempt=attempt, plan=plan, generation=generation)
        live.open[call_id] = call
        return call

    async def _run(self, live: Live, call: OpenCall, request: Request, codec: Codec) -> Answer:
        started = asyncio.get_running_loop().time()
        generation = call.generation
        failure: Fault | None = None

        async def report(event: CallRerouted) -> None:
            await live.log.append(event, call.id, generation.num_reroutes)

        try:
            try:
                await self._generator.run(generation, report)
            except GenerationFailed as error:
                failure = _failure(error)
            except GenerationStopped as error:
                failure = Fault(str(error), status=503, code="call_aborted")
            turn = codec.parse(generation.output_ids, tool_calls=request.tool_calls)
            seconds = asyncio.get_running_loop().time() - started
            event = _recorded(live, call, request, turn, failure, seconds)
            await live.log.append(event, call.id)
            live.matcher.recorded(event)
            failpoint("proxy.after_append")
            if failure is not None:
                raise failure
            if call.num_waiting == 0:
                _give_up(live, call, generation.stopped or "the client left")
            return self._answer(live, call, turn, request, codec)
        except EventLogError as error:
            raise _unrecorded(error) from error
        finally:
            del live.open[call.id]

    def _answer(
        self, live: Live, call: OpenCall, turn: ParsedTurn, request: Request, codec: Codec
    ) -> Answer:
        generation = call.generation
        logprobs = zip(generation.output_ids, generation.logprobs, strict=True)
        node = live.matcher.tree.calls[call.id]
        live.matcher.sent(node, sent_turn(call.id, turn))
        return as_answer(
            call.id,
            turn,
            created=int(self._clock.now()),
            finish=generation.finish or "stop",
            num_input=call.plan.num_input_tokens,
            num_output=len(generation.output_ids),
            num_cached=generation.num_cached,
            logprobs=tuple(
                TokenLogprob(token=codec.token_text(token), logprob=logprob)
                for token, logprob in logprobs
            )
            if request.logprobs
            else (),
        )

    def _answered(self, live: Live, attempt: int, plan: Plan, codec: Codec) -> Answer | None:
        """The answer that an equal request got into the log but, as its retry says, not to the
        client: it is given again, not sampled again."""
        tree = live.matcher.tree
        for node in reversed(tree.children(plan.parent)):
            sampled = node.sampled
            if sampled is None or sampled.attempt != attempt or sampled.status != "committed":
                continue
            if sampled.call in live.undelivered or tree.children(node.id):
                continue
            turn = codec.parse(node.token_ids)
            stopped = node.token_ids[-1:] and node.token_ids[-1] in codec.stop_token_ids
            return as_answer(
                sampled.call,
                turn,
                created=int(self._clock.now()),
                finish="stop" if stopped else "length",
                num_input=plan.num_input_tokens,
                num_output=len(node.token_ids),
                num_cached=0,
            )
        return None


def _running(live: Live, attempt: int, plan: Plan) -> OpenCall | None:
    """The equal call that still runs and that nobody has given up."""
    for call in live.open.values():
        same = call.attempt == attempt and call.plan.parent == plan.parent
        if same and call.generation.stopped is None:
            return call
    return None


def _recorded(
    live: Live,
    call: OpenCall,
    request: Request,
    turn: ParsedTurn,
    failure: Fault | None,
    seconds: float,
) -> CallRecorded:
    generation = call.generation
    parent, segments = live.matcher.unrecorded(call.plan.parent)
    output = tuple(generation.output_ids)
    aborted = generation.stopped is not None and generation.finish is None
    return CallRecorded(
        call=call.id,
        execution=live.execution.id,
        attempt=call.attempt,
        request_role="main",
        parent=parent,
        segments=segments,
        node=sampled_node_id(call.plan.parent, call.id, output),
        output_ids=output,
        output_logprobs=tuple(generation.logprobs),
        spans=tuple(generation.spans),
        num_input_tokens=call.plan.num_input_tokens,
        num_cached_tokens=generation.num_cached,
        temperature=generation.temperature,
        max_new_tokens=generation.max_new_tokens,
        overridden=request.overridden,
        finish_reason=generation.finish or ("abort" if aborted else "error"),
        outcome="committed" if failure is None else "aborted" if aborted else "failed",
        error=None if failure is None else str(failure),
        fork_reason=call.plan.fork_reason,
        num_tool_calls=len(turn.tool_calls),
        num_malformed_tool_calls=turn.num_malformed_tool_calls,
        num_reroutes=generation.num_reroutes,
        duration_s=seconds,
    )


def _give_up(live: Live, call: OpenCall, reason: str) -> None:
    """The committed `call` has nobody left to go to."""
    live.undelivered.add(call.id)
    live.spawn(_record_undelivered(live, call.id, reason))


async def _record_undelivered(live: Live, call: str, reason: str) -> None:
    event = CallUndelivered(call=call, execution=live.execution.id, reason=reason)
    try:
        await live.log.append(event, call)
    except EventLogError as error:
        get_logger().error("undelivered_unrecorded", call=call, error=str(error))
        return
    live.matcher.tree.evolve(event)


def _failure(error: GenerationFailed) -> Fault:
    if error.retryable:
        return Fault(str(error), status=503, code="no_engine")
    return Fault(str(error), status=500, code="engine_refused")


def _unrecorded(error: EventLogError) -> Fault:
    """The turn may not reach the client: what is not in the log was never sampled."""
    match error:
        case SequenceConflict():
            return Fault("the execution's calls are closed", status=409, code="calls_sealed")
        case EventTooLarge():
            return Fault(f"the call is too large to record: {error}", status=500, code="too_large")
        case _:
            return Fault(f"the call was not recorded: {error}", status=503, code="log_away")
