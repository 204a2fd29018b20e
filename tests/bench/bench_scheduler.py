"""What one decision costs with 100,000 executions on 256 cells, and what folding one fact costs.

    python tests/bench/bench_scheduler.py    # writes out/bench/scheduler.json, some seconds

The state is made by folding events, as the scheduler makes it. Each sample folds one fact and asks
the decider: first facts that bring about nothing, then ends of executions that free a slot each
while others wait, so that each brings a start order; then the loss of a full cell, whose executions
go to half-empty ones; then while all satellites are on their way back, each with a deadline to be
looked at (`awaited`). A fold is timed alone over a thousand facts,
in a job of 1,000 and in one of 100,000 executions. `fold_and_decide` lives through a whole job in
virtual time (8 cells, 512 executions a step) and asks the decider after each fact as a simulator
does. Times are this thread's on the CPU: what else runs on the machine is not the decider's cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.testkit.benches import lived_job, write_report
from gyre.testkit.busy_job import BusyJob, busy_job, started
from gyre.testkit.facts import terminated
from gyre.testkit.scheduling_world import World

NUM_CELLS = 256
CAPACITY = 380
GROUPS = 1_000
GROUP_SIZE = 100
NUM_SAMPLES = 2_000
NUM_LOSSES = 200
NUM_FOLDS = 1_000
REPEATS = 7
# How much dearer a fold in the large job may be: its dictionaries no longer lie in the CPU's cache.
MAX_FOLD_RATIO = 2.0
TARGETS = {
    "decision_p99_ms": 1.0,
    "start_p99_ms": 1.0,
    "awaited_p99_ms": 1.0,
    "loss_p50_ms": 1.0,
    "fold_ratio": MAX_FOLD_RATIO,
}


def quiet_facts(busy: BusyJob) -> Iterator[Body]:
    for name, execution in busy.state.executions.items():
        if execution.cell is not None:
            yield started(busy, name)


def ends(busy: BusyJob) -> Iterator[Body]:
    for name in list(busy.state.executions):
        yield terminated(name)


def samples(busy: BusyJob, facts: Iterator[Body], kind: type[Body] | None) -> list[float]:
    """Milliseconds each; what is decided is folded outside of the measurement."""
    taken: list[float] = []
    for _, fact in zip(range(NUM_SAMPLES), facts, strict=False):
        begin = time.thread_time()
        busy.fold(fact)
        decision = busy.decide()
        taken.append((time.thread_time() - begin) * 1e3)
        if decision is not None:
            busy.fold(decision)
        if kind is not None and not isinstance(decision, kind):
            break
    return taken


def losses(busy: BusyJob) -> list[float]:
    """A full cell is lost, the others are half empty: where its executions go, decided again and
    again. Milliseconds each."""
    full = busy.state.everyone[-1]
    for cell in busy.state.everyone[:-1]:
        for name in list(cell.executions)[::2]:
            busy.fold(terminated(name))
    while (decision := busy.decide()) is not None:
        busy.fold(decision)
    busy.fold(sched.AgentSilent(cell=full.cell, last_heard=0.0))
    taken: list[float] = []
    for _ in range(NUM_LOSSES):
        begin = time.thread_time()
        decision = busy.decide()
        taken.append((time.thread_time() - begin) * 1e3)
        if not isinstance(decision, sched.CellLost) or len(decision.moves) != CAPACITY:
            raise AssertionError(f"no loss of a full cell, but {decision!r:.200}")
    return taken


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def decisions() -> dict[str, float]:
    busy = busy_job(
        num_cells=NUM_CELLS, capacity=CAPACITY, num_groups=GROUPS, group_size=GROUP_SIZE
    )
    queued = len(busy.state.queue)
    quiet = samples(busy, quiet_facts(busy), None)
    starts = samples(busy, ends(busy), sched.StartOrdered)
    lost = losses(busy)
    for cell in busy.state.everyone[1:]:
        busy.state.set_role(cell, "to_rollout", 0.0)
    awaited = samples(busy, quiet_facts(busy), None)
    return {
        "num_executions": len(busy.state.executions),
        "num_cells": NUM_CELLS,
        "num_queued": queued,
        "decision_p50_ms": percentile(quiet, 0.5),
        "decision_p99_ms": percentile(quiet, 0.99),
        "awaited_p50_ms": percentile(awaited, 0.5),
        "awaited_p99_ms": percentile(awaited, 0.99),
        "loss_p50_ms": percentile(lost, 0.5),
        "loss_p99_ms": percentile(lost, 0.99),
        "start_p50_ms": percentile(starts, 0.5),
        "start_p99_ms": percentile(starts, 0.99),
    }


def fold_us(num_executions: int) -> float:
    """Microseconds a fact: a start and an end each of some hundred executions."""
    best = float("inf")
    for _ in range(REPEATS):
        busy = busy_job(
            num_cells=8,
            capacity=num_executions // 8,
            num_groups=num_executions // 10,
            group_size=10,
        )
        names = list(busy.state.executions)[: NUM_FOLDS // 2]
        facts = [started(busy, name) for name in names] + [terminated(name) for name in names]
        begin = time.thread_time()
        for fact in facts:
            busy.fold(fact)
        best = min(best, (time.thread_time() - begin) / len(facts) * 1e6)
    return best


def folds() -> dict[str, float]:
    small, large = fold_us(1_000), fold_us(100_000)
    return {"fold_1k_us": small, "fold_100k_us": large, "fold_ratio": large / small}


def whole_job() -> dict[str, float]:
    """Events a second of evolve and next_decision, told what the fact was and not told."""
    world = lived_job(num_steps=12, phi=2)
    return {
        "fold_and_decide_per_s": max(decided(world, told=False) for _ in range(REPEATS)),
        "fold_and_decide_after_per_s": max(decided(world, told=True) for _ in range(REPEATS)),
    }


def decided(world: World, *, told: bool) -> float:
    state = JobState(job="job")
    begin = time.thread_time()
    for sequence, now, body in world.log:
        evolve(state, sequence, body)
        next_decision(state, now, after=body if told else None)
    return len(world.log) / (time.thread_time() - begin)


def main() -> None:
    measured = {**decisions(), **folds(), **whole_job()}
    figures = {name: round(value, 4) for name, value in measured.items()}
    ok = all(figures[name] < most for name, most in TARGETS.items())
    write_report("scheduler", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
