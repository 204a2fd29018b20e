"""Checkpoints through the trainer's own commands: what is saved, resumed, refused and removed.

`test_trainer_state_law.py` runs these in a process of their own, as `check_tree_training.py`'s are.
`GYRE_CHECKED_MODEL`: a directory of `make_tiny_model`. `GYRE_SMALL_DISK`: an empty file system with
room for one of its checkpoints and not for two; "" where there is none.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gyre.testkit.trainer_by_commands import (
    assert_identical,
    everything,
    make,
    refusal,
    save,
    update,
)

pytestmark = pytest.mark.filterwarnings("ignore:::megatron.*")

SMALL_DISK = os.environ.get("GYRE_SMALL_DISK", "")


@pytest.fixture(scope="module")
def model_path() -> Path:
    return Path(os.environ["GYRE_CHECKED_MODEL"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_trainers_next_step_is_identical(
    model_path: Path, tmp_path: Path, dtype: str
) -> None:
    trainer = make(model_path, dtype)
    for version in range(2):
        update(trainer, version, tmp_path)
    save(trainer, tmp_path / "l1-v00002")
    update(trainer, 2, tmp_path)

    resumed = make(model_path, dtype)
    update(resumed, 0, tmp_path)
    resumed.run("load_checkpoint", {"directory": tmp_path / "l1-v00002"})
    update(resumed, 2, tmp_path)
    assert_identical(everything(resumed), everything(trainer))


def test_a_satellite_takes_the_parameters_and_no_optimizer(
    model_path: Path, tmp_path: Path
) -> None:
    core = make(model_path, "bfloat16")
    update(core, 0, tmp_path)
    save(core, tmp_path / "l1-v00001")
    satellite = make(model_path, "bfloat16")
    satellite.run("load_checkpoint", {"directory": tmp_path / "l1-v00001", "optimizer": False})
    assert satellite.trainer.optimizer_state() is None
    assert satellite.run("checksum", {}) == core.run("checksum", {})


def test_the_generators_go_on_where_they_were(model_path: Path, tmp_path: Path) -> None:
    from gyre.cell_agent.trainer.megatron.megatron_core import get_cuda_rng_tracker

    def draws() -> list[Tensor]:
        own = torch.rand(3)
        with get_cuda_rng_tracker().fork():
            return [own, torch.rand(3)]

    trainer = make(model_path, "float32")
    torch.manual_seed(7)
    save(trainer, tmp_path / "l1-v00000")
    expected = draws()
    draws()
    trainer.run("load_checkpoint", {"directory": tmp_path / "l1-v00000"})
    for found, wanted in zip(draws(), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_save_that_goes_on_holds_what_was_there_when_it_began(
    model_path: Path, tmp_path: Path
) -> None:
    trainer = make(model_path, "float32")
    update(trainer, 0, tmp_path)
    before = everything(trainer)
    asked = {"directory": tmp_path / "l1-v00001"}
    assert save(trainer, tmp_path / "l1-v00001", asynchronous=True)["done"] is False
    update(trainer, 1, tmp_path)
    answer = trainer.run("checkpoint_status", asked | {"wait_s": 60.0})
    assert (answer["done"], answer["version"], answer["lineage"]) == (True, 1, 1)
    assert trainer.run("checkpoint_status", asked) == answer
    other = {"directory": tmp_path / "l1-v00009"}
    assert refusal(trainer, "checkpoint_status", **other)[0] == "wrong_state"
    trainer.run("load_checkpoint", asked)
    assert trainer.trainer.core_optimizer().num_updates == 1
    assert_identical(everything(trainer), before)


def test_what_does_not_match_its_manifest_is_refused(model_path: Path, tmp_path: Path) -> None:
    trainer = make(model_path, "float32")
    update(trainer, 0, tmp_path)
    sound = tmp_path / "l1-v00001"
    save(trainer, sound)
    before = trainer.run("checksum", {})

    def damaged(name: str, change: Any) -> tuple[str, str]:
        directory = tmp_path / "damaged"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(sound, directory)
        path = directory / name
        path.write_bytes(change(path.read_bytes()))
        return refusal(trainer, "load_checkpoint", directory=directory)

    def flipped(data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    def of_two_ranks(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | {"num_ranks": 2}).encode()

    def of_another_layout(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | {"layout": {"context": 2}}).encode()

    for name, change, words in (
        ("model.safetensors", flipped, "sha256"),
        ("trainer_state/.metadata", flipped, ".metadata does not match"),
        ("trainer_state/__0_0.distcp", flipped, "__0_0.distcp does not match"),
        ("trainer_state/__0_0.distcp", lambda data: data[:1000], "does not match"),
        ("manifest.json", of_two_ranks, "cells of 2 ranks, this one has 1"),
        ("manifest.json", of_another_layout, "1 ranks (context: 2), this one has 1:"),
    ):
        kind, message = damaged(name, change)
        assert kind == "checkpoint_error", name
        assert words in message, name
    half = make(model_path, "bfloat16")
    kind, message = refusal(half, "load_checkpoint", directory=sound)
    assert (kind, "training.precision" in message) == ("checkpoint_error", True)
    assert trainer.run("checksum", {}) == before


def test_older_checkpoints_go_once_a_newer_one_is_durable(model_path: Path, tmp_path: Path) -> None:
    trainer, directory = make(model_path, "float32"), tmp_path / "j"
    published = directory / "l1-v00001"
    for version in range(1, 5):
        update(trainer, version - 1, tmp_path)
        protected = [published] if version < 4 else []
        saved = directory / f"l1-v{version:05d}"
        save(trainer, saved, keep=1, protected=protected)
        assert names_in(directory) == {saved.name, *(path.name for path in protected)}


@pytest.fixture
def file_bound() -> Iterator[Callable[[int | None], None]]:
    """Bounds the size of the files that this process writes; None: no bound."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def bound(num_bytes: int | None) -> None:
        soft = before[0] if num_bytes is None else num_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield bound
    bound(None)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_that_does_not_fit_is_refused_and_saved_when_it_does(
    model_path: Path,
    tmp_path: Path,
    file_bound: Callable[[int | None], None],
    asynchronous: bool,
) -> None:
    """A bound on files stands in for the disk's: first below the weights' file, then above it but
    below the optimizer's."""
    trainer, directory = make(model_path, "float32"), tmp_path / "j" / "l1-v00001"
    update(trainer, 0, tmp_path)
    held = everything(trainer)

    def whole(command: str, **arguments: Any) -> dict[str, Any]:
        answer = trainer.run(command, {"directory": directory, **arguments})
        return answer if answer["done"] else whole("checkpoint_status", wait_s=60.0)

    for num_bytes in (65536, 300_000):
        file_bound(num_bytes)
        with pytest.raises(Exception, match="make room, then resume the job") as refused:
            whole("save_checkpoint", asynchronous=asynchronous)
        file_bound(None)
        assert getattr(refused.value, "kind", "") == "no_space"
        assert names_in(directory.parent) == set()
        assert_identical(everything(trainer), held)
    assert whole("save_checkpoint", asynchronous=asynchronous)["done"] is True
    trainer.run("load_checkpoint", {"directory": directory})


def names_in(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


@pytest.mark.skipif(not SMALL_DISK, reason="no small file system could be mounted here")
def test_a_full_disk_costs_nothing_but_the_save(model_path: Path, tmp_path: Path) -> None:
    disk = Path(SMALL_DISK)
    trainer = make(model_path, "float32")
    update(trainer, 0, tmp_path)
    save(trainer, disk / "j" / "l1-v00001", keep=2)
    size = sum(path.stat().st_size for path in (disk / "j").rglob("*") if path.is_file())
    update(trainer, 1, tmp_path)
    held = everything(trainer)
    second = disk / "j" / "l1-v00002"

    protected = [disk / "j" / "l1-v00001"]
    filler = disk / "filler"
    for left in (0, size // 8, size // 2, 9 * size // 10):
        fill(filler, left)
        kind, message = refusal(
            trainer, "save_checkpoint", directory=second, keep=1, protected=protected
        )
        assert kind == "no_space", left
        assert "make room, then resume the job" in message
        assert names_in(disk / "j") == {"l1-v00001"}
        assert_identical(everything(trainer), held)
        filler.unlink()

    # An older checkpoint that need not stay makes the room itself.
    fill(filler, size // 2)
    answer = save(trainer, second, keep=1)
    assert answer["done"] is True
    assert names_in(disk / "j") == {"l1-v00002"}
    trainer.run("load_checkpoint", {"directory": second})
    filler.unlink()


def fill(path: Path, num_left: int) -> None:
    """Leaves about so many bytes on the file system of `path`."""
    free = shutil.disk_usage(path.parent).free
    with path.open("wb") as file:
        file.write(b"\1" * max(0, free - num_left))


def test_a_save_is_done_though_the_older_ones_cannot_be_removed(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError("the directory cannot be listed")

    trainer = make(model_path, "float32")
    update(trainer, 0, tmp_path)
    monkeypatch.setattr("gyre.cell_agent.trainer.checkpoints.checkpoint.prune", refused)
    assert save(trainer, tmp_path / "l1-v00001")["done"] is True
    trainer.run("load_checkpoint", {"directory": tmp_path / "l1-v00001"})
