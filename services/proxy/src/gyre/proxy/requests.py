"""A model request and its answer as the proxy sees them, whichever API they came by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.core.messages import Message, num_chars
from gyre.proxy.readings import Reading


class Fault(Exception):
    """The client gets an error instead of a turn.

    status: HTTP's. code: a short word for it, the same for every API; each says it in its own way.
    param: the field at fault. retry_after_s: when asking again may help. detail: what the record
    says instead of the message, for operators.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None,
        param: str | None = None,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class BadRequest(Fault):
    """The client's request cannot be served."""

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message, status=status, code=code, param=param)


class ContextFull(BadRequest):
    """The messages leave no room for an answer. Clients compact when they are told in their API's
    own words. num_tokens: of the request; context_tokens: the served context length."""

    def __init__(self, *, num_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the request has {num_tokens} tokens, the context holds {context_tokens}",
            code="context_length_exceeded",
            param="messages",
        )
        self.num_tokens = num_tokens
        self.context_tokens = context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The job's, which override the client's: engines report logprobs before top-p and penalties.
    To tell what was asked and not done."""

    temperature: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """messages: not empty. tools: each `{"type": "function", "function": {...}}`. tool_calls: False
    when the client wants none. json_schema: the client wants an answer that fits a schema, which it
    may not get. overridden: names of parameters that are not obeyed. headers: the
    client's, names in lower case, without credentials. reading: spares the next request's.
    num_chars: of what the messages say."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_calls: bool = True
    stream: bool = False
    logprobs: bool = False
    json_schema: bool = False
    overridden: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    reading: Reading | None = field(default=None, compare=False, repr=False)
    num_chars: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        if self.reading is None or not self.reading.messages:
            num = num_chars(self.messages)
        else:  # all but what is said beside the list has been counted
            lead = len(self.messages) - len(self.reading.messages)
            num = num_chars(self.messages[:lead]) + self.reading.num_chars[-1]
        object.__setattr__(self, "num_chars", num)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """id: as clients of chat completions see it. arguments: JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole turn. call: its id in the log, from which each API makes the ids that it shows.
    created: unix seconds. finish_reason: stop, length or tool_calls. completion_tokens: the
    reasoning_tokens among them."""

    call: str
    created: int
    content: str
    reasoning: str | None
    tool_calls: tuple[AnswerCall, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
