"""Tree training through Megatron's model: the logprobs and gradients of separate rows, each unique
token computed once.

`test_tree_training_law.py` runs these in a process of their own: the CPU shim patches torch for its
whole process. pytest does not collect this file by its name. `GYRE_CHECKED_MODEL`: a directory of
`make_tiny_model`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyre.core.microstep import MicroStep
from gyre.core.tree import fold
from gyre.testkit.branching_calls import Context, Sizes, calls_of_contexts
from gyre.testkit.draws import draw_samples
from gyre.testkit.trainer_in_process import (
    OBJECTIVE,
    added,
    compute,
    embedded_tokens,
    make_trainer,
    spoiled_from,
    start_world,
)
from gyre.testkit.training import PlainPolicy, plain_gradients
from gyre.testkit.training_trees import (
    TreeShape,
    laid_flat,
    num_distinct_prefixes,
    random_tree_step,
    split_trees,
    step_of_samples,
)

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.batch.batch_record import MicroStepReport
    from gyre.cell_agent.trainer.trainer import MegatronTrainer

pytestmark = pytest.mark.filterwarnings("ignore:::megatron.*")

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}

shapes = st.builds(
    TreeShape,
    num_edges=st.integers(1, 14),
    edge_tokens=st.sampled_from([1, 4, 30]),
    depth_first=st.sampled_from([0.2, 0.6, 0.95]),
    vocab_size=st.sampled_from([2, 500]),
)
seeds = st.integers(0, 10_000)

# An agent, two forks of its history, one of them deep, and its summary.
BRANCHING = (
    Context(opening=("system", "user"), num_turns=9),
    Context(after=(0, 3), of=0, num_shared=7, opening=("user",), num_turns=4),
    Context(after=(0, 6), of=0, num_shared=13, opening=("user",), num_turns=2),
    Context(role="main-summary", after=(0, 8), of=0, num_shared=17, opening=("user",), num_turns=1),
)


@pytest.fixture(scope="module")
def model_path() -> Path:
    return Path(os.environ["GYRE_CHECKED_MODEL"])


@pytest.fixture(scope="module")
def cell_world() -> None:
    start_world()


@pytest.fixture(scope="module", params=BOUNDS, ids=str)
def trainer(cell_world: None, model_path: Path, request: pytest.FixtureRequest) -> MegatronTrainer:
    return make_trainer(model_path, request.param)


@pytest.fixture(scope="module")
def exact(cell_world: None, model_path: Path) -> MegatronTrainer:
    return make_trainer(model_path, torch.float64)


def random_step(seed: int, shape: TreeShape) -> MicroStep:
    rng = random.Random(seed)
    return random_tree_step(rng, shape, num_executions=rng.randint(1, 4))


def num_unique(step: MicroStep) -> int:
    return num_distinct_prefixes(block for block in step.blocks if block.target_positions)


def assert_same_gradients(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], bound: float
) -> None:
    """By tensor, relative to its norm; to a tenth of the largest tensor's where its own is less, as
    that of a query's norm where attention has a single token to choose from, which is zero."""
    assert found.keys() == expected.keys()
    norms = {name: tensor.norm().item() for name, tensor in expected.items()}
    for name, tensor in expected.items():
        difference = (found[name] - tensor).norm().item()
        assert difference <= bound * max(norms[name], 0.1 * max(norms.values())), name


@settings(max_examples=40)
@given(seed=seeds, shape=shapes)
def test_the_embedding_sees_each_unique_token_once(
    trainer: MegatronTrainer, seed: int, shape: TreeShape
) -> None:
    step = random_step(seed, shape)
    trainer.begin_batch(step.batch, 3)
    with embedded_tokens(trainer) as counted:
        report = added(trainer, step)
    trainer.drop_accumulation()
    assert sum(counted) == num_unique(step)
    assert len(counted) == (step.num_targets > 0)
    totals = report.record.totals
    assert totals.num_computed_tokens == totals.num_forwarded_tokens == sum(counted)
    assert totals.num_path_tokens == step.num_path_tokens


@settings(max_examples=40)
@given(seed=seeds, shape=shapes)
def test_logprobs_and_gradients_are_those_of_separate_rows(
    trainer: MegatronTrainer, seed: int, shape: TreeShape
) -> None:
    step = random_step(seed, shape)
    if step.num_targets == 0:
        return
    bound = BOUNDS[next(trainer.model.parameters()).dtype]
    flat = laid_flat(step)
    together, apart = compute(trainer, step), compute(trainer, flat)
    assert (together.logprobs - apart.logprobs).abs().max().item() < bound
    assert together.ratios.tolist() == pytest.approx(apart.ratios.tolist(), rel=bound)
    # Executions' losses, of some tenths each, may cancel one another.
    assert together.loss == pytest.approx(apart.loss, rel=bound, abs=0.1 * bound)
    assert_same_gradients(together.gradients, apart.gradients, bound)
    # Each path is its own unit in the flat rows: alone in the model, once in each pass.
    lengths = [len(block.token_ids) for block in flat.blocks]
    assert apart.num_embedded == (lengths * 2 if len(lengths) > 1 else lengths)


@settings(max_examples=10)
@given(seed=seeds, shape=shapes)
def test_logprobs_loss_and_gradients_are_the_plain_policys(
    exact: MegatronTrainer, model_path: Path, seed: int, shape: TreeShape
) -> None:
    step = random_step(seed, shape)
    if step.num_targets == 0:
        return
    found = compute(exact, step)
    config: dict[str, Any] = json.loads((model_path / "config.json").read_text())
    plain = PlainPolicy(exact.weights(), config)
    blocks = [block for block in step.blocks if block.target_positions]
    logprobs = torch.cat(
        [plain.logprobs(block, step.executions[block.execution].temperature) for block in blocks]
    )
    assert (found.logprobs - logprobs).abs().max().item() < 1e-10
    targets = replace(step, rows=tuple(row for row in step.rows if row.blocks[0] in blocks))
    assert found.loss == pytest.approx(plain_gradients(plain, [targets], OBJECTIVE), rel=1e-10)
    assert_same_gradients(found.gradients, plain.gradients(), 1e-10)


@settings(max_examples=40)
@given(seed=seeds, shape=shapes, paths=st.integers(1, 3), window=st.sampled_from([1, 2, 100]))
def test_a_split_execution_has_the_gradient_of_its_whole_tree(
    exact: MegatronTrainer, seed: int, shape: TreeShape, paths: int, window: int
) -> None:
    """The repeated context is merged again within a unit, and computed again in another."""
    step = random_step(seed, shape)
    if step.num_targets == 0:
        return
    parts = split_trees(step, paths_per_block=paths, window_rows=window)
    whole, split = compute(exact, step), compute(exact, parts)
    assert split.ratios.tolist() == pytest.approx(whole.ratios.tolist(), rel=1e-10)
    assert split.loss == pytest.approx(whole.loss, rel=1e-10)
    assert_same_gradients(split.gradients, whole.gradients, 1e-10)
    units = [
        num_distinct_prefixes(block for row in parts.rows[at : at + window] for block in row.blocks)
        for at in range(0, len(parts.rows), window)
    ]
    assert split.num_embedded == (units * 2 if len(units) > 1 else units)


def test_an_execution_cut_for_its_rows_has_the_gradient_of_its_whole_tree(
    exact: MegatronTrainer,
) -> None:
    """Cut as the trajectory service cuts it: the longest path just fits into a row."""
    tree = fold(calls_of_contexts("e0", BRANCHING, sizes=Sizes(head=12, user=5, tool=4, turn=3)))
    longest = max(leaf.num_path_tokens for leaf in tree.leaves())
    whole, cut = (
        step_of_samples(
            draw_samples(
                tree,
                attempt=1,
                row_tokens=row_tokens,
                max_trajectories=100,
                rng=random.Random(0),
            ),
            vocab_size=500,
            window_rows=1,
        )
        for row_tokens in (1 << 20, longest)
    )
    assert whole.num_targets == cut.num_targets
    assert cut.num_repeated_tokens > 0
    together, apart = compute(exact, whole), compute(exact, cut)
    assert apart.ratios.tolist() == pytest.approx(together.ratios.tolist(), rel=1e-10)
    assert apart.loss == pytest.approx(together.loss, rel=1e-10)
    assert_same_gradients(apart.gradients, together.gradients, 1e-10)
    assert together.num_embedded == [num_unique(whole)]
    carried = [len(row.blocks[0].token_ids) for row in cut.rows]
    assert apart.num_embedded == carried * 2


def test_a_deep_tree_with_a_branch_at_every_token_is_that_of_separate_rows(
    exact: MegatronTrainer,
) -> None:
    shape = TreeShape(num_edges=150, edge_tokens=2, depth_first=0.7, vocab_size=500)
    deep = TreeShape(num_edges=60, edge_tokens=1, depth_first=1.0, vocab_size=2)
    for one in (shape, deep):
        step = random_tree_step(random.Random(0), one, num_executions=2)
        together, apart = compute(exact, step), compute(exact, laid_flat(step))
        assert (together.logprobs - apart.logprobs).abs().max().item() < 1e-10
        assert_same_gradients(together.gradients, apart.gradients, 1e-10)


def test_layers_that_are_recomputed_give_the_same_gradients(
    trainer: MegatronTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one pass, where activations are kept until the backward, and in two."""
    shape = TreeShape(num_edges=12, edge_tokens=9, depth_first=0.6, vocab_size=500)
    step = random_tree_step(random.Random(3), shape, num_executions=3)
    decoder = trainer.model.module.decoder
    for one in (step, laid_flat(step)):
        kept, num_kept = compute(trainer, one), counted_layers(trainer, one)
        with monkeypatch.context() as patch:
            patch.setattr(decoder.config, "recompute_granularity", "full")
            patch.setattr(decoder.config, "recompute_method", "uniform")
            patch.setattr(decoder.config, "recompute_num_layers", 1)
            again, num_again = compute(trainer, one), counted_layers(trainer, one)
        # Every layer whose pass has a backward ran once more.
        assert num_again - num_kept == len(decoder.layers) * num_units(trainer, one)
        assert torch.equal(again.logprobs, kept.logprobs)
        bound = BOUNDS[kept.gradients["model.embed_tokens.weight"].dtype]
        assert_same_gradients(again.gradients, kept.gradients, bound)


def counted_layers(trainer: MegatronTrainer, step: MicroStep) -> int:
    """Forward passes through a layer's attention while the step's gradient is computed."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    layers = trainer.model.module.decoder.layers
    handles = [layer.self_attention.register_forward_hook(count) for layer in layers]
    compute(trainer, step)
    for handle in handles:
        handle.remove()
    return calls


def num_units(trainer: MegatronTrainer, step: MicroStep) -> int:
    from gyre.cell_agent.trainer.model.packing import pack_micro_step

    return len(pack_micro_step(step, trainer.policy).units)


def test_a_visible_gpu_is_refused_by_name(
    cell_world: None, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is said to be there: Megatron would spread the model over it and the CPU."""
    from gyre.cell_agent.trainer.errors import TrainerError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(TrainerError, match="CUDA_VISIBLE_DEVICES"):
        make_trainer(model_path, torch.float64)


def test_placeholders_alone_compute_nothing(trainer: MegatronTrainer) -> None:
    step = random_step(0, TreeShape(num_edges=3, edge_tokens=4, depth_first=0.5, vocab_size=9))
    step = replace(step, executions=step.executions[-1:], rows=())
    trainer.begin_batch(step.batch, 3)
    with embedded_tokens(trainer) as counted:
        report = added(trainer, step)
    assert counted == []
    assert report.record.totals.num_micro_steps == 1
    assert all(not tensor.any() for tensor in trainer.gradients().values())
    trainer.drop_accumulation()


def micro_step_that_is_spoiled(
    trainer: MegatronTrainer, step: MicroStep, call: int
) -> MicroStepReport:
    trainer.begin_batch(step.batch, 3)
    with spoiled_from(trainer, call):
        return added(trainer, step)


@pytest.mark.parametrize("window", [1, 3])
def test_a_value_that_is_not_finite_is_found_before_any_backward(
    trainer: MegatronTrainer, window: int
) -> None:
    """In the last unit of the first pass, or in the only one."""
    step = three_executions(window)
    report = micro_step_that_is_spoiled(trainer, step, call=3 if window == 1 else 1)
    assert "not finite" in report.record.refusal(None)
    assert all(not tensor.any() for tensor in trainer.gradients().values())
    trainer.drop_accumulation()


def test_a_step_with_half_a_micro_step_in_the_buffers_is_not_applied(
    trainer: MegatronTrainer,
) -> None:
    """The first pass is sound, the second one fails in its second unit, after a backward."""
    from gyre.cell_agent.trainer.ranks.world import Rendezvous
    from gyre.cell_agent.trainer.update import finish_batch

    before = trainer.weights()
    trainer.form_world(
        Rendezvous(
            job="j",
            epoch=1,
            rank=0,
            size=1,
            store_host="",
            store_port=0,
            timeout_s=10.0,
            device=trainer.device,
        )
    )
    report = micro_step_that_is_spoiled(trainer, three_executions(1), call=5)
    assert report.record.totals.num_targets == 0
    assert any(tensor.any() for tensor in trainer.gradients().values())
    finished = finish_batch(trainer, members=[0], epoch=1, final=False)
    assert finished.update is not None
    assert "micro-step 0" in finished.update.skip_reason
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.weights().items())
    assert trainer.held is not None
    trainer.held = replace(trainer.held, version=3)


def three_executions(window_rows: int) -> MicroStep:
    shape = TreeShape(num_edges=6, edge_tokens=5, depth_first=0.5, vocab_size=500)
    step = random_tree_step(random.Random(4), shape, num_executions=3)
    return replace(step, window_rows=window_rows)
