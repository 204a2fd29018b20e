"""The engine's counters as Prometheus text, under SGLang's metric names."""

from __future__ import annotations

from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.stats import LATENCY_BUCKETS_S, Histogram


def render_metrics(scheduler: Scheduler, model_name: str, now: float) -> str:
    """Text exposition format 0.0.4; `now` is the scheduler's clock."""
    stats, runner = scheduler.stats, scheduler.runner
    label = f'model_name="{_escape(model_name)}"'
    usage = runner.num_cached_tokens / runner.capacity.cache_tokens
    gauges = {
        "num_running_reqs": (len(scheduler.running), "Requests that hold a slot."),
        "num_queue_reqs": (len(scheduler.waiting), "Requests in the waiting queue."),
        "num_used_tokens": (runner.num_cached_tokens, "Rows of the prefix cache in use."),
        "token_usage": (usage, "Share of the prefix cache in use."),
        "gen_throughput": (stats.tokens_per_s(now), "Tokens a second, last seconds."),
        "cache_hit_rate": (stats.cache_hit_rate, "Cached share of prompt tokens."),
    }
    counters = {
        "prompt_tokens_total": (stats.prompt_tokens, "Prompt tokens admitted."),
        "cached_tokens_total": (stats.cached_tokens, "Prompt tokens found in the cache."),
        "generation_tokens_total": (stats.generated_tokens, "Tokens sampled."),
        "num_requests_total": (stats.finished_requests, "Requests ended."),
        "num_aborted_requests_total": (stats.aborted_requests, "Requests aborted."),
        "num_retractions_total": (stats.retractions, "Retractions of ended requests."),
    }
    lines: list[str] = []
    for kind, group in (("gauge", gauges), ("counter", counters)):
        for name, (value, text) in group.items():
            lines += _header(name, kind, text)
            lines.append(f"sglang:{name}{{{label}}} {value}")
    lines += _histogram("e2e_request_latency_seconds", stats.e2e_latency, label, "Arrival to end.")
    lines += _histogram(
        "time_to_first_token_seconds", stats.first_token_latency, label, "To the first token."
    )
    return "\n".join(lines) + "\n"


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}"]


def _histogram(name: str, histogram: Histogram, label: str, text: str) -> list[str]:
    full = f"sglang:{name}"
    lines = _header(name, "histogram", text)
    for bound, count in zip(LATENCY_BUCKETS_S, histogram.counts, strict=True):
        lines.append(f'{full}_bucket{{{label},le="{bound}"}} {count}')
    lines.append(f'{full}_bucket{{{label},le="+Inf"}} {histogram.num_observed}')
    lines.append(f"{full}_sum{{{label}}} {histogram.total_s}")
    lines.append(f"{full}_count{{{label}}} {histogram.num_observed}")
    return lines


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
