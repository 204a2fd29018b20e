"""A generation request's state inside the engine.

The model thread alone writes; the HTTP thread reads while it writes. Two rules make that safe
without a lock: lists only grow, and `output_ids` grows last, so that a reader who takes
n = len(output_ids) finds at least n entries in every other list. `finish` is set after that.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.cell_agent.engine.local.params import GenerateInput

ABORTED_RUNNING = "Aborted"
ABORTED_WAITING = "Abort in waiting queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Why a request ended: type `stop` (with `matched`), `length` or `abort`."""

    type: str
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The contract's shape; only an abort of a running request has the two empty fields."""
        match self.type:
            case "stop":
                return {"type": "stop", "matched": self.matched}
            case "length":
                return {"type": "length", "length": self.length}
            case _ if self.message == ABORTED_WAITING:
                return {"type": "abort", "message": self.message}
            case _:
                empty = {"status_code": None, "err_type": None}
                return {"type": "abort", "message": self.message, **empty}


Ranked = list[tuple[float, int]]
"""(logprob, token id) pairs, most likely first."""


@dataclass(slots=True, eq=False)
class Request:
    """One request: what was asked, and everything produced so far.

    due_tick: under an emulated speed, the tick of its next token (`pace.Pace`).
    kv_of: the weights that its slot was computed under.
    """

    rid: str
    prompt: Sequence[int]
    asked: GenerateInput
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    created_at: float
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Ranked] = field(default_factory=list)
    chosen: list[Ranked] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top: list[Ranked | None] = field(default_factory=list)
    prompt_chosen: list[Ranked | None] = field(default_factory=list)
    version_starts: list[tuple[str, int]] = field(default_factory=list)
    cached_tokens: int = 0
    num_retractions: int = 0
    due_tick: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    last_version: str = ""
    finish: Finish | None = None
    kv_of: Hashable = None

    @property
    def sequence(self) -> list[int]:
        """Prompt and output so far."""
        return [*self.prompt, *self.output_ids]

    @property
    def num_tokens(self) -> int:
        """Length of `sequence`."""
        return len(self.prompt) + len(self.output_ids)

    def note_version(self, version: str) -> None:
        """The next token appended is sampled under `version`."""
        if not self.version_starts or self.version_starts[-1][0] != version:
            self.version_starts.append((version, len(self.output_ids)))

    def version_spans(self) -> list[dict[str, Any]]:
        """Half-open spans over the output tokens: `[{"version", "start", "end"}]`; without
        tokens one empty span of the version at the end."""
        if not self.output_ids:
            return [{"version": self.last_version, "start": 0, "end": 0}]
        ends = [start for _, start in self.version_starts[1:]] + [len(self.output_ids)]
        return [
            {"version": version, "start": start, "end": end}
            for (version, start), end in zip(self.version_starts, ends, strict=True)
        ]
