"""A lost fact of an execution's own costs the job that execution: whatever the fact was, whenever
it shows, the ledger closes, the job goes on to its end, and its decisions come out again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.events import scheduling as sched
from gyre.contracts.events.lost import FactLost
from gyre.core.explain import Recheck
from gyre.core.scheduling import JobState, ledger, next_decision
from gyre.core.scheduling.cluster import ClusterState, evolve_cluster
from gyre.core.scheduling.snapshot import dump_cluster, load_cluster
from gyre.testkit.scheduling_strategies import SCHEDULES, every_job
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

SHARE = 0.2


@dataclass
class LosingWorld(World):
    """Of each group some executions lose a fact, at any time: before their order too."""

    source: random.Random = field(default_factory=random.Random)
    num_lost: int = 0

    def begin(self) -> None:
        super().begin()
        self.on_fact = lambda state, body, now: (
            self._plan_losses(body) if isinstance(body, sched.Dispatched) else None
        )

    def _plan_losses(self, body: sched.Dispatched) -> None:
        for plan in body.groups:
            for execution in plan.executions:
                if self.source.random() < SHARE:
                    self.later(self.source.expovariate(0.5), partial(self._lose, execution))

    def _lose(self, execution: str) -> None:
        """As the trajectory service does, the group waits for it no more."""
        self.num_lost += 1
        self.fact(FactLost(execution=execution, error="GYRE_FACTS event 1"))
        if self.state.executions[execution].kind == "training":
            self._ended(execution)


def lived(schedule: dict[str, object], seed: int) -> LosingWorld:
    source = random.Random(seed)
    lengths = [source.lognormvariate(0.5, 1.0) for _ in range(2000)]
    world = LosingWorld(job_spec(**schedule), lengths.__getitem__, source=source)  # type: ignore[arg-type]
    world.run()
    return world


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_the_job_ends_well_and_every_slot_is_given_back(
    schedule: dict[str, object], seed: int
) -> None:
    world = lived(schedule, seed)
    state = world.state
    assert (state.status, state.num_lost_facts, state.lost_fact) == (
        "succeeded",
        world.num_lost,
        "",
    )
    counters = state.training
    assert counters.dispatched == counters.ordered == counters.started == counters.terminated
    assert ledger.running(state) == 0
    assert not any(cell.executions for cell in state.cells.values())


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_its_decisions_come_out_again_and_a_snapshot_in_between_changes_nothing(
    schedule: dict[str, object], seed: int
) -> None:
    world = lived(schedule, seed)
    recheck = Recheck("job")
    through, through_snapshot = ClusterState(), ClusterState()
    half = len(world.log) // 2
    for sequence, _, body in world.log:
        recheck.see(sequence, body)
        evolve_cluster(through, sequence, "job", body)
        evolve_cluster(through_snapshot, sequence, "job", body)
        if sequence == half:
            through_snapshot = load_cluster(dump_cluster(through_snapshot))
    assert recheck.first is None
    assert through == through_snapshot


@given(schedule=SCHEDULES, seed=st.integers(0, 10_000), share=st.floats(0.0, 1.0))
@every_job
def test_a_lost_fact_of_the_job_ends_it_whatever_follows(
    schedule: dict[str, object], seed: int, share: float
) -> None:
    """Nothing of the rest raises, and the decision is the same at every place behind it."""
    world = World(job_spec(**schedule), lambda number: 1.0)  # type: ignore[arg-type]
    world.run()
    cluster = ClusterState()
    cut = int(share * (len(world.log) - 2))
    error = f"GYRE_FACTS event {cut + 1} on facts.job.group.g: event cannot be read"
    for sequence, _, body in world.log:
        if isinstance(body, sched.JobFinished):
            break
        told = FactLost(execution=None, error=error) if sequence == cut + 1 else body
        evolve_cluster(cluster, sequence, "job", told)
        if sequence > cut:
            assert_ends(cluster.jobs["job"], error)
    finished = assert_ends(cluster.jobs["job"], error)
    evolve_cluster(cluster, len(world.log), "job", finished)
    state = cluster.jobs["job"]
    assert (state.status, state.settled, state.reason) == ("failed", True, finished.reason)


def assert_ends(state: JobState, error: str) -> sched.JobFinished:
    decision = next_decision(state, 7.0)
    assert isinstance(decision, sched.JobFinished)
    assert decision == sched.JobFinished(
        based_on=state.sequence,
        now=7.0,
        status="failed",
        reason=f"a fact of the job is lost: {error}",
    )
    return decision
