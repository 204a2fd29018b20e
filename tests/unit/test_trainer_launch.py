"""A trainer's command line says to it what its agent means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.trainer.errors import NoGpu
from gyre.cell_agent.trainer.process.launch import (
    DTYPES,
    Meeting,
    TrainerLaunch,
    own_devices,
    read_command,
)
from gyre.contracts.training_job import LayoutSection
from gyre.testkit.pretended_gpus import pretend_gpus

launches = st.builds(
    TrainerLaunch,
    cell=st.integers(0, 10_000),
    model_path=st.sampled_from([Path("/models/a b"), Path("relative"), Path("/--cell")]),
    threads=st.integers(1, 64),
    nice=st.integers(0, 19),
    dtype=st.sampled_from(DTYPES),
    tokens_per_s=st.none() | st.floats(1e-3, 1e9),
)
ranks = st.builds(
    TrainerLaunch,
    cell=st.integers(0, 10_000),
    model_path=st.just(Path("/model")),
    rank=st.integers(0, 3),
    local_rank=st.integers(0, 3),
    layout=st.builds(LayoutSection, tensor=st.just(2), pipeline=st.integers(2, 3)),
    meeting=st.builds(
        Meeting,
        host=st.sampled_from(["127.0.0.1", "::1", "store"]),
        port=st.integers(1, 65535),
        prefix=st.just("cell/0/ab"),
    ),
)


@given(launch=launches | ranks, control=st.sampled_from(["7", "/run/control socket"]))
def test_what_is_written_is_what_is_read(launch: TrainerLaunch, control: str) -> None:
    _, *module = launch.command(control)[:3]
    assert module == ["-m", "gyre.cell_agent.trainer"]
    assert read_command(launch.command(control)[3:]) == (launch, control)


@pytest.mark.parametrize("speed", ["0", "-3", "inf", "nan", "fast"])
def test_a_speed_that_is_none_is_status_2_and_named(
    speed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = TrainerLaunch(cell=0, model_path=Path("m")).command("7")[3:]
    with pytest.raises(SystemExit) as ended:
        read_command([*command, "--emulate-tokens-per-s", speed])
    assert ended.value.code == 2
    assert "--emulate-tokens-per-s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--rank", "1"], "--rank 1: the layout has 1 ranks"),
        (["--layout", '{"tensor": 2}'], "need a store to meet"),
        (["--layout", '{"tensors": 2}'], "--layout"),
        (["--store", "nowhere"], "no host:port"),
    ],
)
def test_a_rank_that_is_none_of_the_layouts_is_status_2_and_named(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = TrainerLaunch(cell=0, model_path=Path("m")).command("7")[3:]
    with pytest.raises(SystemExit) as ended:
        read_command([*command, *more])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visible", "own"),
    [
        (None, ["0", "1", "2"]),
        ("3,5,GPU-8f", ["3", "5", "GPU-8f"]),
        ("", ["", "", ""]),
        ("-1", ["", "", ""]),
    ],
)
def test_each_rank_of_a_node_sees_one_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, own: list[str]
) -> None:
    pretend_gpus(monkeypatch, tmp_path, 8, torch_for_gpus=True)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    told = [own_devices(environ, rank) for rank in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in told] == own


def test_more_ranks_than_gpus_are_refused_by_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, tmp_path, 8, torch_for_gpus=True)
    with pytest.raises(NoGpu, match="is 3,5, and 3 ranks of the cell are on this node"):
        own_devices({"CUDA_VISIBLE_DEVICES": "3,5"}, 2)


def test_ranks_that_train_on_the_cpu_see_no_gpu_however_few_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, tmp_path, 8, torch_for_gpus=False)
    told = own_devices({"CUDA_VISIBLE_DEVICES": "3,5"}, 2)
    assert told["CUDA_VISIBLE_DEVICES"] == ""


def test_a_cells_other_rank_has_the_gpu_of_its_number_on_its_own_node() -> None:
    first = TrainerLaunch(cell=0, model_path=Path("m"))
    assert (first.of_rank(3).rank, first.of_rank(3).local_rank) == (3, 3)
    assert (first.of_rank(3, 1).rank, first.of_rank(3, 1).local_rank) == (3, 1)
