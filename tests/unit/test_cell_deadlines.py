"""The one rule by which a trainer has time: a base, and the model's size at floors of speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.deadlines import (
    FLOOR_BYTES_PER_S,
    FLOOR_FLOPS,
    STATE_BYTES,
    Deadlines,
    deadlines_of,
)
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.core.cell import CellState
from gyre.testkit.pretended_gpus import pretend_gpus
from gyre.testkit.specs import job_spec

NOTHING = Deadlines(num_bytes=0, num_tokens=8192, flops=FLOOR_FLOPS["cpu"])
sizes = st.builds(
    Deadlines,
    num_bytes=st.integers(0, 2**40),
    num_tokens=st.integers(1, 2**18),
    flops=st.sampled_from(sorted(FLOOR_FLOPS.values())),
)


@pytest.mark.parametrize(
    ("name", "times"),
    [("weights_s", 1), ("pull_s", 1), ("state_s", STATE_BYTES), ("save_s", STATE_BYTES)],
)
@given(sizes)
def test_what_moves_bytes_has_its_base_and_the_time_of_the_floor(
    name: str, times: int, size: Deadlines
) -> None:
    seconds = getattr(size, name) - getattr(NOTHING, name)
    assert seconds == pytest.approx(times * size.num_bytes / FLOOR_BYTES_PER_S)


@given(sizes)
def test_a_peer_is_taken_for_lost_only_after_the_micro_step_that_it_may_be_in(
    size: Deadlines,
) -> None:
    assert size.step_s < size.drop_s <= size.world_s < size.finish_s


@given(sizes)
def test_a_micro_step_has_time_by_parameters_and_tokens(size: Deadlines) -> None:
    """Six operations are the least, forward and backward once."""
    least = 6 * (size.num_bytes / 2) * size.num_tokens / size.flops
    assert size.step_s - NOTHING.step_s >= least


def test_a_models_size_is_that_of_its_weights_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(1000))
    (tmp_path / "tokenizer.json").write_bytes(bytes(5000))
    sections = {
        "model": {"path": str(tmp_path)},
        "admission": {"row_tokens": 512, "tokens_per_micro_step": 2048},
    }
    found = deadlines_of(job_spec(sections=sections), "cuda")
    assert found == Deadlines(num_bytes=2000, num_tokens=2048, flops=FLOOR_FLOPS["cuda"])


def test_without_the_models_files_the_bases_hold(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "no", tmp_path):
        found = deadlines_of(job_spec(sections={"model": {"path": str(path)}}), "cpu")
        assert (found.weights_s, found.step_s) == (60.0, 240.0)


def processes_of(home: Path) -> CellProcesses:
    settings = {
        "nats_url": "nats://unused",
        "database_url": "postgresql://unused",
        "key_secret": "s",
        "home": home,
        "cell": 0,
        "store_port": 1,
    }
    return CellProcesses(CellAgentSettings.model_validate(settings))


def state_of(model: Path) -> CellState:
    spec = job_spec(sections={"model": {"path": str(model)}})
    return CellState(cell=0, job="j", spec=spec)


@pytest.mark.parametrize(("for_gpus", "device"), [(False, "cpu"), (True, "cuda")])
def test_a_micro_step_has_the_time_of_the_device_that_the_trainer_computes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_gpus: bool, device: str
) -> None:
    """A torch for CPUs computes there, whatever the engine has."""
    pretend_gpus(monkeypatch, tmp_path, 1, torch_for_gpus=for_gpus)
    state = state_of(tmp_path)
    assert processes_of(tmp_path).deadlines(state).flops == FLOOR_FLOPS[device]


def test_a_models_files_are_looked_at_once_a_job(tmp_path: Path) -> None:
    processes, state = processes_of(tmp_path), state_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert processes.deadlines(state).num_bytes == 1000
    (tmp_path / "model.safetensors").unlink()
    assert processes.deadlines(state).num_bytes == 1000
    assert processes.deadlines(replace(state, job="another")).num_bytes == 0
