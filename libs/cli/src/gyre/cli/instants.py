"""Points in a run's log as the user names them: a stream sequence or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gyre.adapters.journal import Fact
from gyre.cli.errors import CommandError

# Bare digits below this are a stream sequence; from here on (the year 2001) unix seconds.
_FIRST_UNIX_SECOND = 1_000_000_000

HELP = "Stream sequence, ISO 8601 time (UTC unless it says), unix seconds, or +seconds."


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Exactly one is set. time: unix seconds. offset_s: seconds after the run's first fact."""

    sequence: int | None = None
    time: float | None = None
    offset_s: float | None = None


def parse_instant(text: str) -> Instant:
    """`812`, `2026-11-30T05:21:00Z`, `1796015000.5` or `+90`. Raises CommandError for others."""
    if text.isascii() and text.isdigit() and int(text) < _FIRST_UNIX_SECOND:
        return Instant(sequence=int(text))
    if re.fullmatch(r"\+\d+(\.\d*)?", text):
        return Instant(offset_s=float(text))
    if re.fullmatch(r"\d+(\.\d*)?", text):
        return Instant(time=float(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"{text!r} is no point in a log: give a stream sequence (812), a time "
            "(2026-11-30T05:21:00Z), unix seconds (1796015000.5), or seconds after the start (+90)"
        ) from error
    return Instant(time=(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


@dataclass(slots=True)
class Cut:
    """Where reading ends: at the first fact beyond the instant, in the order of the log. None: at
    the log's end. Mutated by `beyond` only, which is asked of every fact in order."""

    instant: Instant | None
    _first: float | None = field(default=None)

    @property
    def until(self) -> int | None:
        """The stream sequence to read up to, when the instant is one."""
        return self.instant.sequence if self.instant else None

    def beyond(self, fact: Fact) -> bool:
        """`fact` is later than the instant."""
        if self._first is None:
            self._first = fact.envelope.time
        instant = self.instant
        if instant is None:
            return False
        if instant.sequence is not None:
            return fact.sequence > instant.sequence
        end = self.time()
        return end is not None and fact.envelope.time > end

    def time(self) -> float | None:
        """The instant in unix seconds, None when it is a sequence or nothing was read yet."""
        instant = self.instant
        if instant is None or (instant.offset_s is not None and self._first is None):
            return None
        if instant.offset_s is not None and self._first is not None:
            return self._first + instant.offset_s
        return instant.time
