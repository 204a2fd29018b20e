"""Which device a trainer computes on, and where its tensors go while the engine has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gyre.cell_agent.process_memory import resident_bytes
from gyre.cell_agent.trainer.device import CPU, device_of
from gyre.cell_agent.trainer.errors import NoGpu, NoMemory
from gyre.cell_agent.trainer.parking import FileParking

MB = 2**20


def test_parked_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(30, 20)
    flat = torch.randn(1000)
    view = flat[10:130].view(3, 40).t()
    tensors = [*layer.parameters(), flat, view, torch.tensor(3.0), torch.empty(0)]
    before = [tensor.detach().clone() for tensor in tensors]
    # numpy marks a tensor's storage as one that torch must not resize.
    layer.weight.detach().numpy()
    parking = FileParking(CPU, tmp_path)
    for _ in range(2):
        parking.park(tensors)
        assert [tensor.numel() for tensor in tensors] == [0] * len(tensors)
        parking.park(tensors)
        parking.unpark()
        assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    parking.close()
    view.fill_(7.0)
    assert flat[10:130].eq(7.0).all()
    layer(torch.ones(2, 30)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (20, 30)


def test_what_is_parked_takes_no_memory_and_no_name_in_the_directory(tmp_path: Path) -> None:
    tensors = [torch.ones(4 * MB) for _ in range(4)]
    parking = FileParking(CPU, tmp_path)
    held = resident_bytes(os.getpid()) or 0
    parking.park(tensors)
    assert held - (resident_bytes(os.getpid()) or 0) > 60 * MB
    assert list(tmp_path.iterdir()) == []
    parking.unpark()
    parking.close()
    assert all(tensor.eq(1).all() for tensor in tensors)


def test_where_there_is_no_room_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    parking = FileParking(CPU, tmp_path / "file")
    tensor = torch.ones(10)
    with pytest.raises(NoMemory, match="no room for the trainer's memory"):
        parking.park([tensor])
    assert tensor.eq(1).all()
    parking.unpark()
    assert tensor.eq(1).all()


@pytest.mark.parametrize("sees_gpu", [False, True])
def test_torch_decides_where_it_computes(sees_gpu: bool) -> None:
    """A build for CPUs beside a GPU computes on the CPU: SGLang may have the GPU even so."""
    found = device_of(cuda_is_available=False, built_for_cuda=False, sees_gpu=sees_gpu)
    assert found == CPU
    assert device_of(cuda_is_available=True, built_for_cuda=True, sees_gpu=True).type == "cuda"
    assert device_of(cuda_is_available=False, built_for_cuda=True, sees_gpu=False) == CPU


def test_a_gpu_that_torch_cannot_use_is_refused_and_not_passed_over() -> None:
    with pytest.raises(NoGpu, match="set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"):
        device_of(cuda_is_available=False, built_for_cuda=True, sees_gpu=True)
