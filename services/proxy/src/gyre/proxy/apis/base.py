"""What an API is to the proxy: a request's body to what is asked, an answer to bytes, both pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gyre.proxy.readings import Known
from gyre.proxy.requests import Answer, Fault, Request, Sampling

# Of one request: far above what a context holds with room for work; stops bodies made to cost time.
MAX_TOOLS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A call that has begun, for the first events of its stream. call: its id in the log. created:
    unix seconds."""

    call: str
    created: int
    num_input_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange(Protocol):
    """One request in its API's words: what is asked, and how it is answered."""

    @property
    def request(self) -> Request: ...

    def body(self, answer: Answer) -> bytes:
        """The answer of a request that is not streamed."""
        ...

    def opening(self, opened: Opened) -> bytes:
        """The first stream events, before there is any of the turn."""
        ...

    def idle(self, opened: Opened) -> bytes:
        """A stream event that says nothing and resets the client's idle timer; after `opening`."""
        ...

    def events(self, answer: Answer) -> Iterable[bytes]:
        """The stream events after the opening ones, up to the last."""
        ...

    def error_event(self, fault: Fault) -> bytes:
        """An error for a stream whose headers are out."""
        ...


class Api(Protocol):
    """One vendor's. Holds no state."""

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key that the request carries. headers: names in lower case."""
        ...

    def parse(
        self,
        body: bytes,
        headers: Mapping[str, str],
        sampling: Sampling,
        known: Known | None = None,
    ) -> Exchange:
        """known: what of the body was read before, which spares reading it again and changes
        nothing else. Raises BadRequest, with the field at fault in its text."""
        ...

    def error(self, fault: Fault) -> Reply:
        """The error in the vendor's shape and wording."""
        ...


def bearer(headers: Mapping[str, str]) -> str | None:
    """The key of an `Authorization: Bearer` header."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None
