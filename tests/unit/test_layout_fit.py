"""A layout that a model cannot be shared out by is refused with the same words at the door and by
the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.cell_agent.gpus import VISIBLE, rank_limit, torch_is_for_gpus, trains_on_gpu
from gyre.cell_agent.trainer.errors import BadModel
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.model.layout import check_layout
from gyre.contracts.events.cells import AgentOnline
from gyre.contracts.training_job import LayoutSection
from gyre.scheduler.submission import InvalidJob, check_surroundings, parse_spec
from gyre.testkit.pretended_gpus import pretend_gpus
from gyre.testkit.scheduler_world import MODEL_CONFIG, sound_job

DENSE = {
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 130,
    "vocab_size": 510,
}
EXPERTS = DENSE | {
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 50,
}
# Engines on GPUs, as experts need them; trainers on CPUs.
AGENTS = [
    AgentOnline(
        cell=cell,
        incarnation="i",
        host="h",
        pid=1,
        engines=("local", "sglang"),
        has_gpu=True,
        node_ranks=limits,
    )
    for cell, limits in enumerate([(None,), (4, 8), (2, None)])
]


class Doors:
    """The scheduler's and the trainer's, before one model."""

    def __init__(self, root: Path) -> None:
        self._root, self._job = root, sound_job(root) | {"engine": {"kind": "sglang"}}

    def scheduler(
        self,
        model: dict[str, Any],
        layout: dict[str, Any],
        agents: Sequence[AgentOnline] = AGENTS,
    ) -> str:
        """What it says against the job; nothing if it takes it."""
        self._write(model)
        spec = parse_spec(self._job | {"training": {"layout": layout}})
        try:
            check_surroundings(spec, agents)
        except InvalidJob as error:
            return str(error)
        return ""

    def trainer(
        self, model: dict[str, Any], layout: dict[str, Any], *, on_gpu: bool = False
    ) -> str:
        self._write(model)
        try:
            policy = read_policy_config(self._root / "model")
            check_layout(policy, LayoutSection.model_validate(layout), on_gpu=on_gpu)
        except BadModel as error:
            return str(error)
        return ""

    def _write(self, model: dict[str, Any]) -> None:
        config = self._root / "model" / "config.json"
        config.write_text(json.dumps(MODEL_CONFIG | model))


@pytest.fixture
def doors(tmp_path: Path) -> Doors:
    return Doors(tmp_path)


@pytest.mark.parametrize(
    ("model", "layout", "said"),
    [
        (
            DENSE,
            {"tensor": 3},
            "tensor: is 3, which does not divide the model's 8 attention heads; choose a size that",
        ),
        (DENSE, {"tensor": 8}, "tensor: is 8, which does not divide the model's 4 key-value heads"),
        (DENSE, {"tensor": 4}, "tensor: is 4, which does not divide the model's 130 feed-forward"),
        (
            DENSE | {"vocab_size": 511},
            {"tensor": 2},
            "tensor: is 2, which does not divide the model's 511 vocabulary entries",
        ),
        (DENSE, {"pipeline": 4}, "pipeline: is 4, which does not divide the model's 6 layers"),
        (DENSE, {"data": 2, "expert": 2}, "expert: is 2, and the model has no experts"),
        (EXPERTS, {"tensor": 2}, "tensor: is 2, which shares a model of experts out only with"),
        (
            EXPERTS,
            {"data": 4, "expert": 4},
            "expert: is 4, which does not divide the model's 6 experts",
        ),
        (
            EXPERTS | {"moe_intermediate_size": 51},
            {"tensor": 2, "sequence_parallel": True},
            "tensor: is 2, which does not divide the model's 51 feed-forward rows",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_both_in_the_same_line(
    doors: Doors, model: dict[str, Any], layout: dict[str, Any], said: str
) -> None:
    line = doors.scheduler(model, layout)
    assert line.startswith(f"training.layout.{said}")
    assert "\n" not in line
    assert doors.trainer(model, layout) == line


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (DENSE, {"tensor": 2, "pipeline": 3, "data": 2}),
        # Tokens are shared out however many there are.
        (DENSE, {"context": 5}),
        (EXPERTS, {"context": 2}),
        (EXPERTS, {"data": 6, "expert": 3}),
        (EXPERTS, {"tensor": 2, "sequence_parallel": True}),
        # A whole expert on each rank has any number of rows.
        (
            EXPERTS | {"moe_intermediate_size": 51},
            {"tensor": 2, "sequence_parallel": True, "expert": 2},
        ),
    ],
)
def test_what_can_be_shared_out_is_taken_by_both(
    doors: Doors, model: dict[str, Any], layout: dict[str, Any]
) -> None:
    assert doors.scheduler(model, layout) == doors.trainer(model, layout) == ""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"model_type": "gpt2"},
            "model_type 'gpt2' is not supported, only llama, qwen3, qwen3_moe",
        ),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads is '0', no positive number"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide', no positive number"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5, no whole number"),
        ({"rope_scaling": ["yarn"]}, "rope_scaling is no object"),
    ],
)
def test_a_model_that_no_trainer_knows_is_refused_by_both(
    doors: Doors, model: dict[str, Any], said: str
) -> None:
    assert doors.scheduler(model, {}) == f"model.path: {doors.trainer(model, {})}"
    assert doors.trainer(model, {}).endswith(f"config.json: {said}")


def test_experts_are_shared_out_within_a_pipeline_stage() -> None:
    with pytest.raises(ValueError, match="expert: 4 does not divide the 2 ranks of a pipeline"):
        LayoutSection(pipeline=2, data=2, expert=4)
    assert LayoutSection(pipeline=2, data=2, tensor=2, expert=4).num_ranks == 8
    assert LayoutSection(tensor=2, expert=2).expert_tensor == 1
    assert LayoutSection(tensor=2, data=2).expert_tensor == 2


def test_more_ranks_than_a_cells_nodes_take_are_refused(doors: Doors) -> None:
    """Any of the cells may get the job."""
    assert doors.scheduler(DENSE, {"data": 12}) == ""
    assert doors.scheduler(DENSE, {"tensor": 2, "data": 8}) == (
        "training.layout: cell 1: the cell's 2 nodes take 12 ranks in tensor-parallel groups of 2, "
        "and the job's layout has 16: give the cell more nodes, or raise GYRE_NODE_RANKS on them"
    )


def test_context_ranks_are_refused_by_both_where_a_cell_trains_on_gpus(doors: Doors) -> None:
    agents = [*AGENTS[:2], AGENTS[2].model_copy(update={"trains_on_gpu": True})]
    assert doors.scheduler(DENSE, {"data": 2}, agents) == ""
    assert doors.trainer(DENSE, {"data": 2}, on_gpu=True) == ""
    why = "is 2, and on GPUs attention is not shared out over context ranks; set it to 1"
    assert (
        doors.scheduler(DENSE, {"context": 2}, agents) == f"training.layout.context: cell 2: {why}"
    )
    assert doors.trainer(DENSE, {"context": 2}, on_gpu=True) == f"training.layout.context: {why}"


@pytest.mark.parametrize(
    ("visible", "num_gpus"),
    [(None, 3), ("0,2", 2), ("GPU-8f", 1), ("1,-1,2", 1), ("", None), ("-1", None)],
)
def test_a_node_takes_a_rank_for_each_of_the_gpus_that_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, num_gpus: int | None
) -> None:
    pretend_gpus(monkeypatch, tmp_path, 3, torch_for_gpus=True)
    environ = {} if visible is None else {VISIBLE: visible}
    assert trains_on_gpu(environ) == (num_gpus is not None)
    assert rank_limit(None, environ) == num_gpus
    assert rank_limit(1, environ) == 1
    assert rank_limit(8, environ) == (num_gpus or 8)


def test_gpus_limit_no_ranks_that_train_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, tmp_path, 3, torch_for_gpus=False)
    assert (rank_limit(None, {VISIBLE: "0,2"}), rank_limit(8, {})) == (None, 8)


def test_where_a_trainer_computes_is_known_without_importing_torch() -> None:
    assert torch_is_for_gpus() == (torch.version.cuda is not None)
    assert not trains_on_gpu({VISIBLE: ""})


def test_the_local_engine_is_refused_a_model_of_experts(tmp_path: Path) -> None:
    raw = sound_job(tmp_path)
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL_CONFIG | EXPERTS))
    with pytest.raises(InvalidJob) as caught:
        check_surroundings(parse_spec(raw), AGENTS)
    assert str(caught.value) == (
        "engine.kind: is local, which serves no model of experts; set it to sglang"
    )
    spec = parse_spec(raw | {"engine": {"kind": "sglang"}})
    assert check_surroundings(spec, AGENTS).experts


def test_a_model_of_experts_is_refused_where_a_cell_serves_on_a_cpu(doors: Doors) -> None:
    """What SGLang says there of its fused experts is nothing that their weights can be held to."""
    agents = [AGENTS[0], AGENTS[1].model_copy(update={"has_gpu": False}), AGENTS[2]]
    assert doors.scheduler(DENSE, {}, agents) == doors.scheduler(EXPERTS, {}) == ""
    assert doors.scheduler(EXPERTS, {}, agents) == (
        "model.path: is a model of experts, but cell 1 serves on a CPU, where it cannot be "
        "confirmed that an engine holds its weights; take a model without experts, or cells with "
        "GPUs"
    )
