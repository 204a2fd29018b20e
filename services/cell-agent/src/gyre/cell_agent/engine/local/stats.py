"""Counters of the engine, for `/v1/loads` and `/metrics`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gyre.cell_agent.engine.local.request import Request

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
THROUGHPUT_WINDOW_S = 5.0
"""Long enough to smooth single steps, short enough to show a stall."""


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram: cumulative bucket counts, sum and count of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * len(LATENCY_BUCKETS_S))
    total_s: float = 0.0
    num_observed: int = 0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.total_s += seconds
        self.num_observed += 1
        for index, bound in enumerate(LATENCY_BUCKETS_S):
            if seconds <= bound:
                self.counts[index] += 1


@dataclass(slots=True)
class EngineStats:
    """Written by the model thread; a reader may see a step's counters half updated."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    retractions: int = 0
    e2e_latency: Histogram = field(default_factory=Histogram)
    first_token_latency: Histogram = field(default_factory=Histogram)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def note_tokens(self, count: int, now: float) -> None:
        """`count` tokens were sampled at `now`."""
        self.generated_tokens += count
        self._recent.append((now, count))
        while self._recent[0][0] < now - THROUGHPUT_WINDOW_S:
            self._recent.popleft()

    def note_finished(self, request: Request) -> None:
        """A request ended, in whatever way."""
        assert request.finish is not None
        assert request.finished_at is not None
        self.finished_requests += 1
        self.aborted_requests += request.finish.type == "abort"
        self.retractions += request.num_retractions
        self.e2e_latency.observe(request.finished_at - request.created_at)
        if request.first_token_at is not None:
            self.first_token_latency.observe(request.first_token_at - request.created_at)

    def tokens_per_s(self, now: float) -> float:
        """Tokens a second over the last few seconds; 0 when nothing was sampled."""
        recent = [count for at, count in list(self._recent) if at >= now - THROUGHPUT_WINDOW_S]
        return sum(recent) / THROUGHPUT_WINDOW_S

    @property
    def cache_hit_rate(self) -> float:
        """Cached share of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
