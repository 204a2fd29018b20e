"""What one decision costs with 100,000 executions on 256 cells.

    python tests/bench/bench_scheduler.py    # writes out/bench/scheduler.json, some seconds

The state is made by folding events, as the scheduler makes it. Each sample folds one fact and asks
the decider: first facts that bring about nothing, then ends of executions that free a slot each
while others wait, so that each brings a start order. Times are this thread's on the CPU: what else
runs on the machine is not the decider's cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.core.scheduling.plans import training_groups
from gyre.testkit.specs import job_spec

NUM_CELLS = 256
CAPACITY = 380
GROUPS = 1_000
GROUP_SIZE = 100
NUM_SAMPLES = 2_000
TARGETS = {"decision_p99_ms": 1.0, "start_p99_ms": 1.0}


class Living:
    """A job's state and the sequence that its log has come to."""

    def __init__(self) -> None:
        self.state = JobState(job="job")
        self._sequence = 0

    def fold(self, body: Body) -> None:
        self._sequence += 1
        evolve(self.state, self._sequence, body)

    def decide(self) -> Body | None:
        return next_decision(self.state, 0.0)


def busy_job() -> Living:
    """Every slot taken, thousands of executions queued, all cells in rollout."""
    living = Living()
    spec = job_spec(
        cells=NUM_CELLS,
        capacity=CAPACITY,
        heldout=False,
        groups_per_step=GROUPS,
        executions_per_group=GROUP_SIZE,
        phi=0,
        mu=1,
        num_steps=4,
    )
    cells = tuple(range(NUM_CELLS))
    living.fold(sched.JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()))
    living.fold(sched.JobStarted(based_on=0, now=0.0, cells=cells, lineage=1))
    for cell in cells:
        living.fold(cell_events.TrainerReady(cell=cell, pid=1))
        living.fold(
            cell_events.RoleChanged(
                cell=cell, role="rollout", version=0, lineage=1, engine_url=None, duration_s=0.0
            )
        )
    living.fold(sched.WorldFormed(based_on=0, now=0.0, epoch=1, cells=cells))
    living.fold(sched.PhaseStarted(based_on=0, now=0.0, phase="training"))
    living.fold(
        sched.Dispatched(
            based_on=0,
            now=0.0,
            kind="training",
            groups=training_groups(living.state, GROUPS),
            version=0,
            lineage=1,
        )
    )
    while (decision := living.decide()) is not None:
        living.fold(decision)
    return living


def quiet_facts(living: Living) -> Iterator[Body]:
    for name, execution in living.state.executions.items():
        if execution.cell is not None:
            yield run_events.Started(execution=name, group=execution.group, task="t")


def ends(living: Living) -> Iterator[Body]:
    for name in list(living.state.executions):
        yield run_events.Terminated(
            execution=name,
            attempt=1,
            reason="completed",
            exit_code=0,
            signal=None,
            workspace=None,
            duration_s=1.0,
        )


def samples(living: Living, facts: Iterator[Body], kind: type[Body] | None) -> list[float]:
    """Milliseconds each; what is decided is folded outside of the measurement."""
    taken: list[float] = []
    for _, fact in zip(range(NUM_SAMPLES), facts, strict=False):
        started = time.thread_time()
        living.fold(fact)
        decision = living.decide()
        taken.append((time.thread_time() - started) * 1e3)
        assert (decision is None) if kind is None else isinstance(decision, kind)
        if decision is not None:
            living.fold(decision)
    return sorted(taken)


def main() -> None:
    living = busy_job()
    assert len(living.state.executions) == GROUPS * GROUP_SIZE
    quiet = samples(living, quiet_facts(living), None)
    starts = samples(living, ends(living), sched.StartOrdered)
    figures = {
        "num_executions": len(living.state.executions),
        "num_cells": NUM_CELLS,
        "num_queued": len(living.state.queue),
        "decision_p50_ms": round(quiet[len(quiet) // 2], 4),
        "decision_p99_ms": round(quiet[len(quiet) * 99 // 100], 4),
        "start_p50_ms": round(starts[len(starts) // 2], 4),
        "start_p99_ms": round(starts[len(starts) * 99 // 100], 4),
    }
    ok = all(figures[name] < most for name, most in TARGETS.items())
    report = {"name": "scheduler", "figures": figures, "targets": TARGETS, "ok": ok}
    out = Path("out/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "scheduler.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
