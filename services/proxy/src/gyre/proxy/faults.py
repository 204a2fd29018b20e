"""What clients are told when a call cannot be had, each in one place.

What an error says of hosts, paths and code is for operators: it goes into the log, once, where the
error becomes a fault. Clients are told what they can act on.
"""

from __future__ import annotations

from traceback import format_exception

from aiohttp import web

from gyre.adapters.eventlog.base import EventLogError, EventTooLarge
from gyre.adapters.journal import EventLost
from gyre.adapters.logging import get_logger
from gyre.proxy.codecs.tokenizer import ModelFilesError
from gyre.proxy.limits import RETRY_AFTER_S
from gyre.proxy.requests import Fault
from gyre.proxy.sampling.course import GenerationFailed

# Of a traceback: its end says what happened. An error's text may hold what a client sent.
_TRACE_CHARS = 8000


class Unauthorized(Exception):
    """The key is missing, not of this stack, or of an attempt that is not running."""


def fault_of(error: Exception) -> Fault:
    """What the client of a request that ended with `error` is told. An error that nobody foresaw
    is the vendor's own failure: the request's, and nothing else's."""
    match error:
        case Fault():
            return error
        case Unauthorized():
            return Fault(str(error), status=401, code="invalid_api_key")
        case web.HTTPException():
            return Fault(error.reason, status=error.status, code=None)
        case EventLost():
            get_logger().error("record_lost", error=str(error))
            return Fault("this execution's record is lost", status=500, code="record_lost")
        case EventLogError():
            return log_away(error)
        case ModelFilesError():
            get_logger().error("model_files_unread", error=str(error))
            return Fault("the policy's files cannot be read", status=500, code="internal_error")
        case _:
            trace = "".join(format_exception(error))[-_TRACE_CHARS:]
            get_logger().error("request_failed", error=type(error).__name__, traceback=trace)
            return Fault("an error inside the proxy", status=500, code="internal_error")


def later(why: str, code: str) -> Fault:
    """The same request may be served soon."""
    return Fault(why, status=503, code=code, retry_after_s=RETRY_AFTER_S)


def overloaded(why: str) -> Fault:
    return later(f"overloaded: {why}, ask again later", "overloaded")


def attempt_over() -> Fault:
    """For a request whose key was valid when it came."""
    return Fault("the key's attempt is over", status=401, code="invalid_api_key")


def log_away(why: object) -> Fault:
    get_logger().error("log_away", error=str(why))
    return later("calls cannot be recorded now: ask again", "log_away")


def not_sampled(error: GenerationFailed) -> Fault:
    if error.retryable:
        return later(str(error), "no_engine")
    why = "the engine refuses this call"
    return Fault(why, status=500, code="engine_refused", detail=str(error))


def unrecorded(error: EventLogError, *, sealed: bool) -> Fault:
    """The turn may not reach the client: what is not in the log was never sampled."""
    if isinstance(error, EventTooLarge):
        get_logger().error("call_too_large", error=str(error))
        return Fault("the call is too large to record", status=500, code="too_large")
    if sealed:
        return Fault("the execution's calls are closed", status=409, code="calls_sealed")
    return log_away(error)
