"""Structured logs: one JSON line an event on stderr, with an action name and bound ids.

    log = get_logger()
    with bind(job="j1", execution="e7"):
        log.info("attempt_started", attempt=2)

A redactor runs last: it masks fields whose name says secret, SecretStr values, passwords in
URLs, bearer tokens, and every literal that was given to `configure_logging`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import orjson
import structlog
from pydantic import SecretStr

MASK = "***"
# Whole names, or the end of one: `token_ids` and `num_tokens` are data, `api_token` is not.
_SECRET_NAME = re.compile(
    r"(^|.*[_-])(secret|password|passwd|authorization|api[_-]?key|token|cookie)$", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(\w+://)[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+")


class Redactor:
    """A structlog processor that masks secrets anywhere in an event."""

    def __init__(self, literals: Sequence[str] = ()) -> None:
        self._literals = tuple(sorted((text for text in literals if text), key=len, reverse=True))

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        return {name: self._clean(name, value) for name, value in event.items()}

    def _clean(self, name: str, value: Any) -> Any:
        match value:
            case SecretStr():
                return MASK
            case str() | bytes() if _SECRET_NAME.match(name):
                return MASK
            case str():
                return self.text(value)
            case Mapping():
                return {str(key): self._clean(str(key), item) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._clean(name, item) for item in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self.text(str(value))

    def text(self, text: str) -> str:
        """`text` without URL passwords, bearer tokens and known literals."""
        for literal in self._literals:
            text = text.replace(literal, MASK)
        text = _URL_PASSWORD.sub(rf"\1{MASK}@", text)
        return _BEARER.sub(rf"\1 {MASK}", text)


def configure_logging(
    service: str,
    level: str = "INFO",
    *,
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Sets up this process's logging. The standard library's loggers go the same way."""
    redactor = Redactor(secrets)
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _stamp(service),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redactor,
    ]
    output = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_json)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=output),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_json),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # One line a request says nothing that the events do not.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """A logger whose methods take an action name in past tense or noun, then fields."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


@contextmanager
def bind(**ids: str | int) -> Iterator[None]:
    """Adds fields (job, execution, call, ...) to every line logged inside, also in tasks."""
    with structlog.contextvars.bound_contextvars(**ids):
        yield


def _stamp(service: str) -> structlog.types.Processor:
    def stamp(
        logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["service"] = service
        return event

    return stamp


def _json(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
