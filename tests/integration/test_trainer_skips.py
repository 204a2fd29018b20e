"""What two real trainers say of a step, and when the core does not apply it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from gyre.core.microstep import MicroStep
from gyre.testkit.trainer_cells import CALL_S, NORMALIZER, Cells, batch_of_steps, running
from gyre.testkit.training import make_executions, make_micro_step

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cells]:
    work = tmp_path_factory.mktemp("skips")
    async with running(work, dtype="float32", num_cells=2) as cells:
        yield cells


@pytest_asyncio.fixture(loop_scope="module")
async def pair(started: Cells) -> Cells:
    """Both at the model's own weights as version 3, in one world, without a bound."""
    await started.configure()
    await started.renew()
    await started.form(started.trainers)
    return started


async def step(
    cells: Cells, shares: Sequence[Sequence[MicroStep]], *, batch: str = "b0", version: int = 3
) -> dict[str, Any]:
    """Core and satellite train their shares; returns the core's answer."""
    await cells.begin(cells.trainers, batch, version)
    await asyncio.gather(*map(cells.train, cells.trainers, shares))
    core, other = await cells.finish(cells.trainers)
    assert isinstance(core, dict), core
    assert isinstance(other, dict), other
    return core


async def checksums(cells: Cells) -> list[tuple[str, int]]:
    answers = [await trainer.call("checksum", CALL_S) for trainer in cells.trainers]
    return [(answer["checksum"], answer["version"]) for answer in answers]


def not_finite(batch: str, index: int) -> MicroStep:
    """A temperature so small that logits overflow under it."""
    executions = [
        (replace(info, temperature=1e-300), blocks)
        for info, blocks in make_executions(random.Random(4), count=2, vocab_size=512)
    ]
    return make_micro_step(executions, batch=batch, index=index, normalizer=NORMALIZER)


async def test_what_is_said_of_a_step_does_not_depend_on_who_trained_what(pair: Cells) -> None:
    steps = batch_of_steps()
    together = await step(pair, [steps, []])
    for trainer in pair.trainers:
        await pair.load(trainer)
    shared = await step(pair, [steps[3:], steps[:3]])
    counted = ("num_targets", "num_executions", "ratio_counts", "token_ratio_counts")
    for name in (*counted, "num_tokens", "num_path_tokens", "clip_fraction", "weight_capped"):
        assert shared["statistics"][name] == together["statistics"][name], name
    for name in ("loss", "entropy", "mean_ratio", "mean_abs_logprob_diff"):
        expected = together["statistics"][name]
        assert shared["statistics"][name] == pytest.approx(expected, rel=1e-5), name
    versions = [(m["version"], m["num_targets"]) for m in shared["statistics"]["mismatches"]]
    recorded = [v for s in steps for b in s.blocks for v in b.versions]
    assert versions == [(version, recorded.count(version)) for version in (3, 4)]
    assert [one["execution"] for one in shared["executions"]] == [
        info.execution for s in steps for info in s.executions
    ]
    verdicts = [(one["ratio"], one["kept"]) for one in shared["executions"]]
    assert [ratio for ratio, _ in verdicts] == pytest.approx(
        [one["ratio"] for one in together["executions"]], rel=1e-5
    )
    assert {kept for _, kept in verdicts} == {True, False}


async def test_one_micro_step_that_is_not_finite_skips_the_step_for_all_cells(pair: Cells) -> None:
    before = await checksums(pair)
    steps = batch_of_steps()
    await pair.begin(pair.trainers)
    (answer,) = await pair.train(pair.trainers[1], [not_finite("b0", 7)])
    assert answer["problem"].startswith("micro-step 7: not finite: ")
    core = await step(pair, [steps[:2], [steps[2], not_finite("b0", 7)]])
    assert core["skipped"]
    assert core["skip_reason"] == f"non_finite_loss: {answer['problem']}"
    assert core["num_micro_steps"] == 4
    assert core["statistics"]["num_targets"] == sum(s.num_targets for s in steps[:3])
    unknown = {one["micro_step"] for one in core["executions"] if one["ratio"] is None}
    assert unknown == {7}
    assert await checksums(pair) == [(checksum, 4) for checksum, _ in before]

    # The weights are what they were, and the next batch is trained on them.
    following = await step(pair, [batch_of_steps("b1"), []], batch="b1", version=4)
    assert (following["skipped"], following["skip_reason"], following["version"]) == (False, "", 5)
    after = await checksums(pair)
    assert after[0] == after[1] != before[0]


async def test_a_mismatch_beyond_the_jobs_bound_skips_the_step_and_names_versions(
    pair: Cells,
) -> None:
    """The recorded log-probabilities are made up: about half a nat from the trainer's."""
    before = await checksums(pair)
    await pair.configure(max_mismatch=0.01)
    steps = batch_of_steps()
    core = await step(pair, [steps[:2], steps[2:]])
    assert core["skipped"]
    assert core["skip_reason"].startswith("mismatch: ")
    for mismatch in core["statistics"]["mismatches"]:
        said = f"version {mismatch['version']} by {mismatch['mean_abs']:.3g} over "
        assert said in core["skip_reason"]
    assert await checksums(pair) == [(checksum, 4) for checksum, _ in before]

    await pair.configure(max_mismatch=5.0)
    following = await step(pair, [batch_of_steps("b1"), []], batch="b1", version=4)
    assert not following["skipped"]
