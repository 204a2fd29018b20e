"""Creates and updates the three JetStream streams."""

from __future__ import annotations

from typing import Any

from gyre.adapters.eventlog.base import EventLogError, Stream
from gyre.adapters.eventlog.link import ApiError, Link

DUPLICATE_WINDOW_S = 120
DEADLINE_S = 30.0
_NANOSECONDS = 1_000_000_000
_NO_STREAM = 10059


async def ensure_streams(
    nats_url: str, *, replicas: int = 1, deadline_s: float = DEADLINE_S
) -> None:
    """Makes the streams what `stream_config` says; repeats until the server is up.

    Raises EventLogError at the deadline or when an existing stream cannot become so.
    """
    link = Link(nats_url, name="gyre-streams")
    try:
        for stream in Stream:
            await _ensure(link, stream, stream_config(stream, replicas=replicas), deadline_s)
    finally:
        await link.close()


def stream_config(stream: Stream, *, replicas: int = 1) -> dict[str, Any]:
    """JetStream's configuration: facts and calls are kept for ever, work until it is done."""
    queue = stream is Stream.WORK
    return {
        "name": stream.value,
        "subjects": [f"{stream.prefix}>"],
        "storage": "file",
        "retention": "workqueue" if queue else "limits",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_S * _NANOSECONDS,
        "allow_direct": True,
        # A fact is appended once and never edited: the server refuses to.
        "deny_delete": not queue,
        "deny_purge": not queue,
    }


async def _ensure(link: Link, stream: Stream, config: dict[str, Any], deadline_s: float) -> None:
    name = stream.value
    try:
        await link.api(f"$JS.API.STREAM.UPDATE.{name}", config, deadline_s=deadline_s)
    except ApiError as error:
        if error.err_code != _NO_STREAM:
            raise EventLogError(f"stream {name} cannot be updated: {error}") from None
        await link.api(f"$JS.API.STREAM.CREATE.{name}", config, deadline_s=deadline_s)
