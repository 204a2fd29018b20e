"""What a call says of itself in the log."""

from __future__ import annotations

from gyre.contracts.events.calls import CallRecorded
from gyre.core.tree_nodes import sampled_node_id
from gyre.proxy.codecs.encoding import ParsedTurn
from gyre.proxy.live import Live, OpenCall
from gyre.proxy.requests import Fault, Request
from gyre.proxy.sampling.course import Generation


def recorded(
    live: Live,
    call: OpenCall,
    generation: Generation,
    request: Request,
    turn: ParsedTurn,
    failure: Fault | None,
    api: str,
) -> CallRecorded:
    """The event of a call that ended. failure: what its client is told instead of the turn."""
    parent, segments = live.matcher.unrecorded(call.plan.parent)
    output = tuple(generation.output_ids)
    aborted = generation.stopped is not None and generation.finish is None
    cut = "superseded" if call.superseded else "aborted"
    origin = call.origin
    return CallRecorded(
        call=call.id,
        execution=live.execution.id,
        attempt=call.attempt,
        request_role=origin.role,
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
        outcome="committed" if failure is None else cut if aborted else "failed",
        error=None if failure is None else failure.detail or str(failure),
        fork_reason=call.plan.fork_reason,
        num_tool_calls=len(turn.tool_calls),
        num_malformed_tool_calls=turn.num_malformed_tool_calls,
        num_reroutes=generation.num_reroutes,
        duration_s=generation.ended - generation.began,
        delivered=tuple(live.delivered),
        api=api,
        agent=origin.agent,
        parent_agent=origin.parent_agent,
        queue_s=generation.queue_s,
        first_token_s=generation.first_token_s,
        moved=generation.moved(),
    )
