"""Events a second of the simulator, on the paper's workload under each policy.

    python tests/bench/bench_simulator.py    # writes out/bench/simulator.json, some seconds

An event is a fact folded by the live scheduler's `evolve`, decisions among them, or an entry taken
from the calendar, the decider's timers among them. Whole jobs of 48 steps, 24,576 executions each,
loading of the parameters excluded. Times are this thread's on the CPU; the best of three rounds
counts, since a shared machine changes from second to second.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from gyre.simulator import Simulation
from gyre.simulator.paper.ablation import NUM_STEPS, paper, parameters, simulation
from gyre.testkit.benches import write_report

ROUNDS = 3
TARGETS = {"events_per_s": 200_000}
# One row of the paper's table for each policy.
ROWS = {"gyre": "E0", "async": "A3", "colocate": "C2"}


def one_run(row: dict[str, Any], seed: int) -> tuple[int, int, float]:
    """Events, decisions, CPU seconds."""
    spec = simulation(row, parameters(), NUM_STEPS)
    prepared = spec.job()
    world = Simulation(
        prepared.spec,
        spec.drawn(prepared.spec, seed),
        prepared.speeds,
        prepared.nodes,
        until_step=prepared.until_step,
    )
    gc.collect()
    started = time.thread_time()
    outcome = world.run()
    return outcome.num_events, outcome.num_decisions, time.thread_time() - started


def main() -> None:
    rows = {row["id"]: row for row in paper()["rows"]}
    figures: dict[str, float] = {}
    total_events, total_s = 0, 0.0
    for policy, name in ROWS.items():
        runs = [one_run(rows[name], seed=0) for _ in range(ROUNDS)]
        events, decisions, seconds = min(runs, key=lambda run: run[2])
        total_events += events
        total_s += seconds
        figures[f"{policy}_events_per_s"] = round(events / seconds)
        figures[f"{policy}_num_events"] = events
        figures[f"{policy}_num_decisions"] = decisions
    figures["events_per_s"] = round(total_events / total_s)
    ok = all(figures[name] >= least for name, least in TARGETS.items())
    write_report("simulator", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
