"""A cell's role switch by its real processes: what each side holds, and what is undone."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent import engine_turn, phases, roles
from gyre.cell_agent.engine.base import EngineRefusedError
from gyre.cell_agent.reports import ProcessLost
from gyre.cell_agent.stepping import publishing
from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.cell_agent.weights.delivery import ServedWeights
from gyre.contracts.events.cells import RoleChanged
from gyre.core.cell import orders
from gyre.core.cell.state import Checkpoint, Exposure
from gyre.testkit.nats_server import free_port
from gyre.testkit.switching_cell import (
    VERSION,
    Answerless,
    Refusing,
    SwitchingCell,
    most_held,
    switching_cell,
)
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.training import make_executions, make_micro_step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

MB = 2**20
OUT = ["stop_admitting", "reroute", "drain", "release_engine", "restore_trainer"]
BACK = ["offload_trainer", "resume_engine", "receive_weights", "warm", "open_routes"]
# What a program's own memory may move by from phase to phase.
SLACK = 16 * MB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SwitchingCell]:
    root = tmp_path_factory.mktemp("switching")
    model = make_tiny_model(
        root / "model",
        hidden_size=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=1024,
        vocab_size=16_384,
    )
    async with switching_cell(root / "home", model) as started:
        yield started


async def update(cell: SwitchingCell, version: int, directory: Path) -> None:
    """One optimizer update, as the core of a world of one."""
    batch = f"b{version}"
    step = make_micro_step(
        make_executions(random.Random(version), count=4, vocab_size=512),
        batch=batch,
        index=0,
        normalizer=4,
    )
    path = directory / f"{batch}.microstep"
    path.write_bytes(encode_microstep(step))
    await cell.call("begin_batch", batch=batch, version=version)
    await cell.call("submit_step", source=path)
    await cell.call("finish_batch", members=[0], epoch=1, final=True)


@contextmanager
def refusing(cell: SwitchingCell, **paths: int) -> Iterator[None]:
    """Requests of the agent to these paths of the engine are refused, so many of each."""
    http = cell.engine.http
    inner = http._transport
    http._transport = Refusing(inner, {f"/{name}": often for name, often in paths.items()})
    try:
        yield
    finally:
        http._transport = inner


@contextmanager
def no_more_memory(pid: int) -> Iterator[None]:
    """The process gets none beyond what it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + MB, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def at(change: RoleChanged, phase: str) -> Any:
    return next(record for record in change.phases if record.name == phase)


async def test_at_no_point_do_both_sides_hold_the_memory(
    cell: SwitchingCell, tmp_path: Path
) -> None:
    before = await cell.greedy("a")
    await cell.call("form_world", epoch=1, rank=0, size=1, timeout_s=5.0)
    changes = []
    for version in range(3):
        changes.append(await cell.leave())
        await update(cell, version, tmp_path)
        changes.append(await cell.come_back())
    assert [[phase.name for phase in one.phases] for one in changes] == 3 * [OUT, BACK]
    assert len({(change.engine_pid, change.trainer_pids) for change in changes}) == 1
    # The first time programs load what they keep.
    *_, out, back = changes
    bases = at(out, "release_engine").engine_bytes, at(back, "offload_trainer").trainer_bytes
    engine, trainer, both = most_held([out, back], bases)
    weights = 4 * (await cell.call("status"))["num_parameters"]
    assert engine > weights
    # Parameters, gradients, two moments.
    assert trainer > 3.8 * weights
    assert both < max(engine, trainer) + SLACK
    assert await cell.greedy("b") == before


async def test_parameters_and_moments_are_the_same_after_the_engine_had_their_memory(
    cell: SwitchingCell, tmp_path: Path
) -> None:
    found = []
    for with_switch in (False, True):
        if cell.state.role == "rollout":
            await cell.leave()
        await cell.call("load_weights", path=cell.model, version=0, lineage=1)
        await update(cell, 0, tmp_path)
        if with_switch:
            await cell.come_back()
            served = await cell.call("checksum")
            await cell.leave()
            assert served == await cell.call("checksum")
        await update(cell, 1, tmp_path)
        found.append((await cell.call("checksum"))["checksum"])
    await cell.come_back()
    assert found[0] == found[1]


async def test_an_engine_that_keeps_its_memory_ends_the_switch_and_serves_on(
    cell: SwitchingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_turn, "RELEASE_S", 0.3)
    before = await cell.greedy("c")
    with refusing(cell, release_memory_occupation=10_000):
        change = await cell.leave()
    assert (change.role, change.undone) == ("rollout", "release_engine")
    assert change.phases[-1].undone
    assert (await cell.call("status"))["offloaded"]
    assert await cell.greedy("d") == before


async def test_a_trainer_that_finds_no_memory_gives_it_back_to_the_engine(
    cell: SwitchingCell,
) -> None:
    before = await cell.greedy("e")
    with no_more_memory(cell.performer.processes.live_trainer.pid):
        change = await cell.leave()
    assert (change.role, change.undone) == ("rollout", "restore_trainer")
    assert (await cell.call("status"))["offloaded"]
    assert await cell.greedy("f") == before
    assert (await cell.leave()).role == "training"
    assert (await cell.come_back()).role == "rollout"


@pytest.mark.parametrize("path", ["resume_memory_occupation", "update_weights_from_disk"])
async def test_an_engine_that_refuses_once_on_the_way_back_is_asked_again(
    cell: SwitchingCell, path: str
) -> None:
    before = await cell.greedy("g")
    left = await cell.leave()
    with refusing(cell, **{path: 1}):
        change = await cell.come_back()
    assert (change.role, change.engine_pid) == ("rollout", left.engine_pid)
    assert [phase.name for phase in change.phases if phase.undone]
    assert await cell.greedy("h") == before


async def test_calls_that_ran_when_the_cell_left_are_answered(
    cell: SwitchingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody comes for a copy here.
    monkeypatch.setattr(engine_turn, "PIN_S", 0.2)
    calls = [asyncio.create_task(cell.stream(f"s{place}", 900)) for place in range(4)]
    await cell.until_busy(4)
    await cell.leave()
    assert all(await asyncio.gather(*calls))
    await cell.come_back()


async def test_an_engine_without_weights_computes_nothing(cell: SwitchingCell) -> None:
    await cell.engine.pause("in_place")
    await cell.engine.release_memory(("kv_cache", "weights"))
    await cell.engine.resume_memory(("kv_cache", "weights"))
    await cell.engine.resume()
    with pytest.raises(EngineRefusedError, match="load them first"):
        await cell.greedy("i")
    with pytest.raises(EngineRefusedError, match="load them first"):
        await cell.engine.checksum()
    await cell.engine.pause("in_place")
    await cell.engine.update_weights_from_disk(str(cell.model), weight_version="1.0")
    await cell.engine.resume()
    assert await cell.greedy("j")


async def test_an_offloaded_trainer_refuses_to_train(cell: SwitchingCell) -> None:
    with pytest.raises(TrainerRefused, match="restore first"):
        await cell.call("begin_batch", batch="b", version=0)


@pytest.fixture
def core_away(monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """The newest weights are on a core that nobody answers for."""
    saved = Checkpoint(version=(1, 1), path="on the core", checksum="?")
    offered = Exposure(version=saved.version, host="127.0.0.1", port=free_port(), checksum="?")
    weights = ServedWeights(
        path=saved.path, version=saved.version, checksum="?", job="switching", offered=offered
    )
    monkeypatch.setattr(roles, "newest_weights", lambda state: weights)
    monkeypatch.setattr(publishing, "ASK_AGAIN_S", 0.01)
    return saved


async def test_an_engine_waits_on_the_way_back_for_a_core_that_is_away(
    cell: SwitchingCell, core_away: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await cell.greedy("k")
    left = await cell.leave()
    duty = orders.ReturnToRollout(checkpoint=core_away, version=core_away.version)
    for _ in range(2):
        assert await cell.performer.perform(duty, cell.state) == []
    assert cell.engine.released == {"kv_cache", "weights"}
    assert not (await cell.call("status"))["offloaded"]
    monkeypatch.undo()
    assert (await cell.come_back()).engine_pid == left.engine_pid
    assert await cell.greedy("l") == before


async def test_a_switch_undone_while_the_core_is_away_leaves_the_old_weights_in_service(
    cell: SwitchingCell, core_away: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_turn, "RELEASE_S", 0.3)
    before = await cell.greedy("m")
    with refusing(cell, release_memory_occupation=10_000):
        change = await cell.leave()
    assert (change.undone, change.version) == ("release_engine", 0)
    assert await cell.greedy("n") == before


async def test_an_engine_that_began_on_the_way_back_ends_before_the_trainer_has_its_memory(
    cell: SwitchingCell, core_away: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await cell.greedy("o")
    await cell.leave()
    await cell.performer.forget(ProcessLost(process="engine", error="killed by the test"))
    duty = orders.ReturnToRollout(checkpoint=core_away, version=core_away.version)
    assert await cell.performer.perform(duty, cell.state) == []
    assert cell.performer.processes.engine is None
    assert not (await cell.call("status"))["offloaded"]
    monkeypatch.undo()
    assert (await cell.come_back()).role == "rollout"
    assert await cell.greedy("p") == before


async def test_an_engine_whose_answer_to_a_release_is_late_is_ended_and_not_undone(
    cell: SwitchingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await cell.greedy("q")
    monkeypatch.setattr(phases, "DEADLINES_S", {**phases.DEADLINES_S, "release_engine": 2.0})
    # It gives its memory up, and the answer is lost.
    http = cell.engine.http
    http._transport = Answerless(http._transport, "/release_memory_occupation")
    with pytest.raises(ProcessLost, match=r"release_engine: not done after 2\.\d s") as lost:
        await cell.leave()
    assert lost.value.process == "engine"
    assert (await cell.call("status"))["offloaded"]
    await cell.performer.forget(lost.value)
    await cell.performer.perform(orders.StartEngine(path=None, version=VERSION), cell.state)
    assert await cell.greedy("r") == before


async def test_weights_that_cannot_be_had_end_the_engine(
    cell: SwitchingCell, tmp_path: Path
) -> None:
    """The last test: a new engine would begin with the right weights."""
    await cell.leave()
    cell.state.checkpoint = Checkpoint(version=(1, 1), path=str(tmp_path / "none"), checksum="?")
    with pytest.raises(ProcessLost, match="engine"):
        await cell.come_back(cell.state.checkpoint)
