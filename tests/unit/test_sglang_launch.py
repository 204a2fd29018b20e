"""What SGLang lacks on a CPU, the command that starts it, and what is installed for it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gyre.cell_agent.engine.sglang.launch import CPU, cpu_command, cpu_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kernels() -> ModuleType:
    """The stand-in, found as SGLang finds it."""
    spec = importlib.util.spec_from_file_location("sgl_kernel", CPU / "sgl_kernel" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_new_cache_slots_are_noted_where_each_request_goes_on(kernels: ModuleType) -> None:
    slots = torch.zeros(3, 6, dtype=torch.int32)
    kernels.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]),
        slots,
        torch.tensor([1, 3]),
        torch.tensor([4, 5]),
        torch.tensor([11, 12, 13, 21, 22]),
        6,
    )
    assert slots.tolist() == [[0, 0, 0, 21, 22, 0], [0] * 6, [0, 11, 12, 13, 0, 0]]


def test_a_kernel_without_a_stand_in_says_its_name_when_it_is_called(kernels: ModuleType) -> None:
    missing = kernels.rotary_embedding
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.rotary_embedding"):
        missing(1, out=2)


def test_the_stand_in_does_not_pass_for_the_real_kernels(kernels: ModuleType) -> None:
    assert not hasattr(kernels, "__version__")
    assert not hasattr(torch.ops.sgl_kernel, "decode_attention_cpu")


def test_the_command_runs_the_launcher_with_sglangs_python_alone() -> None:
    command = cpu_command(
        "/sglang/python",
        model_path="/m",
        host="127.0.0.1",
        port=7,
        weight_version="0.3",
        context_tokens=64,
        cache_tokens=128,
    )
    assert command[0] == "/sglang/python"
    assert Path(command[1]).is_file()
    options = dict(zip(command[2::2], command[3::2], strict=False))
    assert options["--weight-version"] == "0.3"
    assert (options["--context-length"], options["--max-total-tokens"]) == ("71", "128")
    environment = cpu_environment({"HOME": "/h", "PYTHONPATH": "/p"}, threads=2)
    assert environment["PYTHONPATH"].split(":") == [str(CPU), "/p"]
    assert (environment["HOME"], environment["OMP_NUM_THREADS"]) == ("/h", "2")


@pytest.mark.parametrize("name", ["sglang.txt", "sglang-bare.txt"])
def test_what_is_installed_for_sglang_is_pinned(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [line for line in pins if "==" not in line] == []


def test_an_installation_without_a_checkouts_environment_is_one_line(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("setup.py", "verbs.py", "sglang.py"):
        (scripts / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    command = [sys.executable, str(scripts / "sglang.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr == "sglang: no environment in this checkout yet: make setup\n"
