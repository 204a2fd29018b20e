"""What clients are told when a call cannot be had, each in one place."""

from __future__ import annotations

from gyre.adapters.eventlog.base import EventLogError, EventTooLarge
from gyre.proxy.generation import GenerationFailed
from gyre.proxy.limits import RETRY_AFTER_S
from gyre.proxy.requests import Fault


def later(why: str, code: str) -> Fault:
    """The same request may be served soon."""
    return Fault(why, status=503, code=code, retry_after_s=RETRY_AFTER_S)


def overloaded(why: str) -> Fault:
    return later(f"overloaded: {why}, ask again later", "overloaded")


def attempt_over() -> Fault:
    """For a request whose key was valid when it came."""
    return Fault("the key's attempt is over", status=401, code="invalid_api_key")


def log_away(why: object) -> Fault:
    return later(f"the log cannot be asked: {why}", "log_away")


def not_sampled(error: GenerationFailed) -> Fault:
    if error.retryable:
        return later(str(error), "no_engine")
    return Fault(str(error), status=500, code="engine_refused")


def unrecorded(error: EventLogError, *, sealed: bool) -> Fault:
    """The turn may not reach the client: what is not in the log was never sampled."""
    if isinstance(error, EventTooLarge):
        return Fault(f"the call is too large to record: {error}", status=500, code="too_large")
    if sealed:
        return Fault("the execution's calls are closed", status=409, code="calls_sealed")
    return later(f"the call was not recorded: {error}", "log_away")
