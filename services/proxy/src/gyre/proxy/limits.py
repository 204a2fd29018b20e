"""How much the proxy takes in and how long anything in it may wait. Each is a setting."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]

# Agent programs obey up to 60 s and give up at once above; this is short against their 170 s in
# all, and long enough for a call to end somewhere.
RETRY_AFTER_S = 2.0


class Limits(BaseModel):
    """max_body_bytes: Anthropic's own limit; a context of a million tokens has 4 MB.
    max_messages: of a request; agents compact long before, and each costs some 0.2 ms as it comes
    for the first time.
    max_buffered_bytes: of bodies that are being received, over all clients.
    body_timeout_s: for a whole body; agents are near, and send theirs in milliseconds.
    idle_timeout_s: after which a connection without a whole head of a request is closed; longer
    than a tool may run (10 min in Claude Code), so that no client meets a close as it asks again.
    max_calls: that run, over all executions; an engine queues what it cannot run, so this bounds
    memory: a context of 200 k tokens has 0.8 MB. max_execution_calls: of one execution; agents run
    up to some ten sub-agents at once.
    max_reading_bytes: of histories that are kept as they were read, since clients send them again:
    bodies, their texts once more and their tokens; so 170 executions of 500 kB.
    max_context_bytes: of contexts that are kept as they were sent to the engine, since the next one
    begins with them: some 10 B a token, so 64 executions of 100 k tokens.
    keepalive_s: between two signs of life on a stream; agents give up after 300 s.
    answer_within_s: for an answer that is not streamed; below the agents' 300 s. What is not ready
    by then goes on for the client's retry.
    delivery_timeout_s: for a client to take an answer.
    retry_grace_s: how long a call that nobody waits for is held. Agents come back after 0 to 0.5 s,
    SDKs after up to 8 s.
    key_patience_s: for the fact that an attempt has started, which may still be under way.
    owner_patience_s: how long another replica may take to seal an execution of its own; 0 where
    there is one proxy.
    """

    model_config = ConfigDict(frozen=True)

    max_body_bytes: Count = 32 * 2**20
    max_messages: Count = 10_000
    max_buffered_bytes: Count = 256 * 2**20
    body_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 900.0
    max_calls: Count = 4096
    max_execution_calls: Count = 64
    max_reading_bytes: Count = 256 * 2**20
    max_context_bytes: Count = 64 * 2**20
    keepalive_s: Annotated[Seconds, Field(le=60)] = 10.0
    answer_within_s: Annotated[Seconds, Field(lt=300)] = 285.0
    delivery_timeout_s: Seconds = 60.0
    retry_grace_s: Annotated[float, Field(ge=0, le=240)] = 10.0
    key_patience_s: Annotated[Seconds, Field(le=60)] = 5.0
    owner_patience_s: Annotated[float, Field(ge=0, le=600)] = 0.0
