"""Kills, corrupt bytes and a full disk among real cells: the job recovers by itself or waits with a
named error until it is resumed, and its loss curve is an undisturbed run's."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.journal import Fact
from gyre.cell_agent.trainer.process.client import TrainerProcess, TrainerRefused
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.testkit.cells_job import Life, cells_spec, make_batches
from gyre.testkit.real_cells import RealCells
from gyre.testkit.weight_relay import relaying

pytestmark = pytest.mark.timeout(240)

# Sums of other orders: floats of 32 bits, some steps of Adam.
TOLERANCE = 1e-5
CORE, SATELLITE, POOL = 0, 1, 2
# The same contents for each step: losses differ from step to step for the updates alone.
BATCHES = 3 * make_batches(num_batches=1, num_micro_steps=8, normalizer=8)


def run(home: Path, *failpoints: str, **more: Any) -> Life:
    spec = cells_spec(home, **more)
    environment = {"GYRE_FAILPOINT": ",".join(failpoints)} if failpoints else {}
    return RealCells(spec=spec, home=home, batches=BATCHES, environment=environment).live()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return run(tmp_path_factory.mktemp("undisturbed"))


def holds(life: Life, undisturbed: Life) -> None:
    """What every run here must come to."""
    assert (life.end.status, life.end.reason) == ("succeeded", "all steps done")
    assert life.losses == pytest.approx(undisturbed.losses, rel=TOLERANCE)
    for step in life.steps:
        assert sorted(owner.index for owner in step.micro_steps) == list(range(8))
        assert {owner.cell for owner in step.micro_steps} <= set(step.members)
    published = life.of(cell_events.WeightsPublished)
    assert published[-1].version == len(BATCHES)


def died(home: Path, failpoint: str) -> bool:
    return (home / "run" / f"failpoint.{failpoint}").exists()


def test_satellites_share_an_undisturbed_job_whose_losses_differ_from_step_to_step(
    undisturbed: Life,
) -> None:
    """Else the curves below would agree for a poor reason: nobody joined, or nothing was learnt."""
    holds(undisturbed, undisturbed)
    assert any(SATELLITE in step.members for step in undisturbed.steps)
    assert undisturbed.of(sched.EpochFenced) == []
    before, *others = undisturbed.losses
    assert all(abs(loss / before - 1) > 100 * TOLERANCE for loss in others)


def test_a_satellites_trainer_killed_within_its_accumulation(
    tmp_path: Path, undisturbed: Life
) -> None:
    life = run(tmp_path, "trainer_1.mid_accumulation:2")
    assert died(tmp_path, "trainer_1.mid_accumulation")
    assert [lost.cell for lost in life.of(cell_events.TrainerLost)][:1] == [SATELLITE]
    assert life.of(sched.EpochFenced)
    assert life.of(sched.Restored) == []
    holds(life, undisturbed)


def test_the_core_killed_between_its_update_and_the_broadcast(
    tmp_path: Path, undisturbed: Life
) -> None:
    """The update is lost with it: the job goes back to its last checkpoint, in a new lineage."""
    life = run(tmp_path, "trainer.after_update:2")
    assert died(tmp_path, "trainer.after_update")
    assert CORE in [lost.cell for lost in life.of(cell_events.TrainerLost)]
    assert [restored.lineage for restored in life.of(sched.Restored)] == [2]
    assert {step.lineage for step in life.steps} == {2}
    holds(life, undisturbed)


def test_an_engine_killed_while_it_loads_what_is_published(
    tmp_path: Path, undisturbed: Life
) -> None:
    """It comes back with the new weights, and none is published before it has."""
    life = run(tmp_path, "engine.mid_update", pool=1)
    assert died(tmp_path, "engine.mid_update")
    (lost,) = life.of(cell_events.EngineLost)
    assert lost.cell in (SATELLITE, POOL)
    version = (life.steps[-1].lineage, len(BATCHES))
    back = [
        (role.lineage, role.version)
        for role in life.of(cell_events.RoleChanged)
        if role.cell == lost.cell and role.role == "rollout"
    ]
    assert back[-1] == version
    holds(life, undisturbed)


def test_corrupt_bytes_in_a_weight_transfer(
    tmp_path: Path, undisturbed: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before anything is replaced; the satellite asks again and joins the same batch."""
    refusals: list[tuple[str, int, int]] = []
    call = TrainerProcess.call

    async def over_a_bad_network(
        self: TrainerProcess, command: str, timeout_s: float, /, **arguments: Any
    ) -> dict[str, Any]:
        if command != "pull_weights" or refusals:
            return await call(self, command, timeout_s, **arguments)
        with relaying((arguments["host"], arguments["port"]), one_bit_altered) as relay:
            host, port = relay.address
            try:
                return await call(
                    self, command, timeout_s, **{**arguments, "host": host, "port": port}
                )
            except TrainerRefused as refused:
                refusals.append((refused.kind, arguments["lineage"], arguments["version"]))
                raise

    monkeypatch.setattr(TrainerProcess, "call", over_a_bad_network)
    # A publication after each step: the next one's satellite has to pull.
    life = run(tmp_path, mu=1)
    [(kind, lineage, version)] = refusals
    assert kind == "weights_unavailable"
    assert life.of(cell_events.TrainerLost) == []
    # A cell that could not pull has not joined: these are of the time after the refusal.
    joined = [one for one in life.of(cell_events.BatchJoined) if one.cell == SATELLITE]
    assert (lineage, version) in [(one.lineage, one.version) for one in joined]
    holds(life, undisturbed)


def one_bit_altered(carried: int, data: bytes) -> bytes:
    return bytes([data[0] ^ 4]) + data[1:] if carried == 0 else data


def test_a_full_disk_at_the_checkpoint(tmp_path: Path, undisturbed: Life) -> None:
    """Named, and the job waits; with room again it is resumed and has lost nothing."""
    cells = RealCells(spec=cells_spec(tmp_path), home=tmp_path, batches=BATCHES)
    pids: dict[int, int] = {}

    def fill_and_free(fact: Fact) -> None:
        match fact.body:
            case cell_events.TrainerReady(cell=cell, pid=pid):
                pids[cell] = pid
            case step_events.StepCompleted():
                limit_files(pids[CORE], 65_536)
            case cell_events.CheckpointFailed():
                limit_files(pids[CORE], resource.RLIM_INFINITY)
                cells.resume()

    cells.on_fact = fill_and_free
    life = cells.live()
    (failed,) = life.of(cell_events.CheckpointFailed)
    assert (failed.cell, failed.version) == (CORE, len(BATCHES))
    assert str(tmp_path) in failed.error
    assert life.of(cell_events.TrainerLost) == []
    assert list((tmp_path / "checkpoints").glob("*/.*")) == []
    holds(life, undisturbed)


def limit_files(pid: int, num_bytes: int) -> None:
    """What a process may write into one file: a disk that is full for it alone."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, hard))


def test_a_rank_of_a_cell_of_two(tmp_path: Path, undisturbed: Life) -> None:
    """It takes its cell's trainer with it, and costs what a trainer costs."""
    life = run(tmp_path, "trainer_1.mid_accumulation:2", layout={"tensor": 2})
    assert died(tmp_path, "trainer_1.mid_accumulation")
    ready = [one for one in life.of(cell_events.TrainerReady) if one.cell == SATELLITE]
    assert len(ready) == 2
    assert all(len(one.pids) == 2 for one in ready)
    assert not set(ready[0].pids) & set(ready[1].pids)
    assert [lost.cell for lost in life.of(cell_events.TrainerLost)] == [SATELLITE]
    holds(life, undisturbed)
