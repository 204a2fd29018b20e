"""What a duty leaves: facts to append, or the news that a process is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gyre.contracts.envelope import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A fact to append. subject: None for the cell's own. expected: the subject's last sequence,
    None where this agent is the only writer."""

    body: Body
    subject: str | None = None
    expected: int | None = None


class ProcessLost(Exception):
    """The engine or the trainer is gone, or was killed because it could not be trusted."""

    def __init__(self, *, process: Literal["engine", "trainer"], error: str) -> None:
        super().__init__(f"{process}: {error}")
        self.process = process
        self.error = error
