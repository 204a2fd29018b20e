"""Training: gradients equal the plain run's, whatever the cells, joins, deaths and packing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerRefused
from gyre.core.microstep import MicroStep
from gyre.testkit.plain_batch import largest_difference, plain_run
from gyre.testkit.trainer_cells import (
    CALL_S,
    NORMALIZER,
    Cells,
    batch_of_steps,
    running,
)
from gyre.testkit.training import make_executions, make_micro_step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cells(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cells]:
    work = tmp_path_factory.mktemp("cells")
    async with running(work, dtype="float32", num_cells=3) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(cells: Cells) -> Cells:
    """The same trainers, back at the model's own weights."""
    await cells.renew()
    return cells


@pytest.mark.parametrize(
    "assignment",
    [
        [[0, 1, 2, 3, 4]],
        [[4, 2, 0], [3, 1]],
        [[0, 1], [2, 3], [4]],
        [[1, 0, 2], [], [4, 3]],
        [[], [0, 1, 2, 3, 4]],
    ],
    ids=["one cell", "two", "three", "a satellite with nothing", "a core with nothing"],
)
async def test_the_gradient_is_the_plain_runs_however_micro_steps_are_claimed(
    fresh: Cells, assignment: list[list[int]]
) -> None:
    steps = batch_of_steps()
    plain = plain_run(fresh.model, steps, torch.float32)
    members = fresh.trainers[: len(assignment)]
    await fresh.form(members)
    await fresh.begin(members)
    await asyncio.gather(
        *(
            fresh.train(member, [steps[index] for index in claimed])
            for member, claimed in zip(members, assignment, strict=True)
        )
    )
    answers = await fresh.finish(members)
    core = answers[0]
    assert isinstance(core, dict)
    assert largest_difference(await fresh.gradients(members[0]), plain.gradients) < 1e-5
    assert core["statistics"]["loss"] == pytest.approx(plain.loss, rel=1e-5)
    assert core["num_micro_steps"] == len(steps)
    assert core["statistics"]["num_targets"] == sum(step.num_targets for step in steps)
    # Each had a part in it.
    assert {one["micro_step"] for one in core["executions"] if one["kept"]} == set(range(5))
    sums = [await member.call("checksum", CALL_S) for member in members]
    assert len({tuple(value.items()) for value in sums}) == 1
    assert sums[0]["version"] == 4


async def test_another_packing_of_the_same_executions_gives_the_same_gradient(fresh: Cells) -> None:
    (core, *_) = fresh.trainers
    rng = random.Random(3)
    executions = make_executions(rng, count=6, vocab_size=512)
    found = []
    for cut, rows in [(6, 1), (2, 3), (1, 2)]:
        rng.shuffle(executions)
        steps = [
            make_micro_step(
                executions[start : start + cut],
                batch="b0",
                index=start,
                normalizer=NORMALIZER,
                blocks_per_row=rows,
            )
            for start in range(0, 6, cut)
        ]
        await fresh.form([core])
        await fresh.begin([core])
        await fresh.train(core, steps)
        found.append(await fresh.gradients(core))
    assert largest_difference(found[1], found[0]) < 1e-5
    assert largest_difference(found[2], found[0]) < 1e-5


async def test_a_late_joiner_pulls_the_weights_and_shares_the_batch(fresh: Cells) -> None:
    steps = batch_of_steps()
    plain = plain_run(fresh.model, steps, torch.float32)
    core, joiner = fresh.trainers[:2]
    await joiner.call("load_weights", CALL_S, path=fresh.model, version=0, lineage=0)
    await fresh.form([core, joiner])
    served = await core.call("serve_weights", CALL_S)
    await fresh.begin([core])
    await fresh.train(core, steps[:2])
    with pytest.raises(TrainerRefused, match="wrong_version"):
        await joiner.call("begin_batch", CALL_S, batch="b0", version=3)
    place = {"host": served["host"], "port": served["port"]}
    pulled = await joiner.call("pull_weights", CALL_S, **place, version=3, lineage=0)
    assert pulled["checksum"] == served["checksum"]
    await fresh.begin([joiner])
    await asyncio.gather(fresh.train(core, steps[2:4]), fresh.train(joiner, steps[4:]))
    answers = await fresh.finish([core, joiner], final=True)
    assert largest_difference(await fresh.gradients(core), plain.gradients) < 1e-5
    assert [a["weights_version"] for a in answers if isinstance(a, dict)] == [4, 3]
    # What is served follows the update.
    await joiner.call("pull_weights", CALL_S, **place, version=4, lineage=0)
    with pytest.raises(TrainerRefused, match="weights_unavailable"):
        await joiner.call("pull_weights", CALL_S, **place, version=3, lineage=0)


async def test_members_that_hold_other_weights_are_never_reduced(fresh: Cells) -> None:
    core, other = fresh.trainers[:2]
    await other.call("load_weights", CALL_S, path=fresh.model, version=3, lineage=1)
    await fresh.form([core, other])
    await fresh.begin([core, other])
    before = await core.call("checksum", CALL_S)
    answers = await fresh.finish([core, other])
    assert [getattr(answer, "kind", None) for answer in answers] == ["members_disagree"] * 2
    assert await core.call("checksum", CALL_S) == before


async def test_a_set_that_is_no_prefix_is_refused(fresh: Cells) -> None:
    core, other = fresh.trainers[:2]
    await fresh.form([core, other])
    await fresh.begin([core, other])
    for members in ([1], [1, 0], [0, 1, 2]):
        with pytest.raises(TrainerRefused, match="no prefix"):
            await core.call("finish_batch", CALL_S, members=members, epoch=fresh.epoch, final=False)


async def test_in_float64_the_gradient_is_the_plain_runs_to_ten_digits(tmp_path: Path) -> None:
    steps = batch_of_steps(seed=5)
    async with running(tmp_path, dtype="float64", num_cells=2) as pair:
        plain = plain_run(pair.model, steps, torch.float64)
        await pair.form(pair.trainers)
        await pair.begin(pair.trainers)
        core, satellite = pair.trainers
        await asyncio.gather(pair.train(core, steps[3:]), pair.train(satellite, steps[:3]))
        answers = await pair.finish(pair.trainers)
        assert all(isinstance(answer, dict) for answer in answers), answers
        assert largest_difference(await pair.gradients(core), plain.gradients) < 1e-10


@pytest.mark.parametrize("place", ["trainer.mid_accumulation:2", "trainer.before_reduce"])
async def test_a_member_that_dies_costs_its_epoch_and_not_the_batch(
    fresh: Cells, tmp_path: Path, place: str
) -> None:
    steps = batch_of_steps(seed=9)
    plain = plain_run(fresh.model, steps, torch.float32)
    core, survivor = fresh.trainers[0], fresh.trainers[2]
    doomed = await fresh.add(GYRE_FAILPOINT=place, GYRE_HOME=str(tmp_path))
    fresh.trainers.remove(doomed)
    members = [core, doomed, survivor]
    await fresh.form(members)
    await fresh.begin(members)
    await fresh.train(core, steps[:1])
    await fresh.train(survivor, steps[1:2])
    with contextlib.suppress(TrainerGone):
        await fresh.train(doomed, steps[2:])
    answers = await fresh.finish(members)
    assert [getattr(a, "kind", type(a).__name__) for a in answers] == [
        "peer_lost",
        "TrainerGone",
        "peer_lost",
    ]
    assert await doomed.wait() == -9

    survivors = [core, survivor]
    assert (await core.call("status", CALL_S))["epoch"] is None
    await fresh.form(survivors)
    await fresh.begin(survivors)
    await asyncio.gather(fresh.train(survivor, steps[:3]), fresh.train(core, steps[3:]))
    answers = await fresh.finish(survivors)
    assert all(isinstance(answer, dict) for answer in answers), answers
    assert largest_difference(await fresh.gradients(core), plain.gradients) < 1e-5


async def test_a_death_after_the_update_leaves_the_update_standing(
    fresh: Cells, tmp_path: Path
) -> None:
    """And no survivor with half an update: the core's weights, or none until it pulls."""
    steps = batch_of_steps(seed=11)
    plain = plain_run(fresh.model, steps, torch.float32)
    core, survivor = fresh.trainers[0], fresh.trainers[2]
    place = {"GYRE_FAILPOINT": "trainer.before_broadcast", "GYRE_HOME": str(tmp_path)}
    doomed = await fresh.add(**place)
    fresh.trainers.remove(doomed)
    members = [core, doomed, survivor]
    await fresh.form(members)
    await fresh.begin(members)
    await fresh.train(core, steps)
    stepped, _, other = await fresh.finish(members)
    assert await doomed.wait() == -9
    assert isinstance(stepped, dict)
    assert (stepped["version"], stepped["weights_version"]) == (4, 4)
    assert largest_difference(await fresh.gradients(core), plain.gradients) < 1e-5
    if isinstance(other, BaseException):
        assert getattr(other, "kind", None) == "peer_lost"
        assert (await survivor.call("status", CALL_S))["version"] is None
        served = await core.call("serve_weights", CALL_S)
        where = {"host": served["host"], "port": served["port"]}
        await survivor.call("pull_weights", CALL_S, **where, version=4, lineage=0)
    assert await survivor.call("checksum", CALL_S) == await core.call("checksum", CALL_S)


async def test_two_cells_checkpoint_is_resumed_by_one_and_by_three(
    fresh: Cells, tmp_path: Path
) -> None:
    """It says nothing of cells. The next core is another process each time, and has never updated:
    the losses and the norm are the undisturbed run's all the same."""
    first, second, third = fresh.trainers
    await one_step(fresh, [first, second], 3, batch_of_steps("b0"))
    directory = tmp_path / "l0-v00004"
    await first.call("save_checkpoint", CALL_S, directory=directory)
    steps = batch_of_steps("b1", seed=1)
    undisturbed = await one_step(fresh, [first, second], 4, steps)

    for lineage, members in enumerate(([third], [second, third, first]), start=1):
        for place, member in enumerate(members):
            asked = {"directory": directory, "lineage": lineage, "optimizer": place == 0}
            await member.call("load_checkpoint", CALL_S, **asked)
        resumed = await one_step(fresh, members, 4, steps)
        assert resumed["grad_norm"] == pytest.approx(undisturbed["grad_norm"], rel=1e-5)
        assert resumed["statistics"]["loss"] == pytest.approx(
            undisturbed["statistics"]["loss"], rel=1e-5
        )
        names = [await member.call("checksum", CALL_S) for member in members]
        assert {(name["version"], name["lineage"]) for name in names} == {(5, lineage)}
        assert len({name["checksum"] for name in names}) == 1


async def one_step(
    cells: Cells, members: Sequence[TrainerGroup], version: int, steps: Sequence[MicroStep]
) -> dict[str, Any]:
    """The core's answer. Micro-steps go round the members."""
    await cells.form(members)
    await cells.begin(members, steps[0].batch, version)
    await asyncio.gather(
        *(cells.train(member, steps[place :: len(members)]) for place, member in enumerate(members))
    )
    core, *_ = await cells.finish(members)
    assert isinstance(core, dict), core
    return core
