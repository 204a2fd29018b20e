"""What SGLang lacks on a CPU, the command that starts it, and what is installed for it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gyre.cell_agent.engine.launch import (
    EngineLaunch,
    EngineStartError,
    command_of,
    startable,
)
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.engine.sglang.launch import CPU, INSTALLED, installed_python

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


LAUNCH = EngineLaunch(
    kind="sglang",
    model_path="/m",
    weight_version="0.3",
    context_tokens=64,
    max_running_requests=2,
    seed=5,
    host="127.0.0.1",
    threads=2,
    python=Path("/sglang/python"),
)


def options_of(command: list[str]) -> dict[str, str]:
    """--name value; flags have none."""
    pairs = zip(command, [*command[1:], ""], strict=True)
    return {name: value for name, value in pairs if name.startswith("--")}


def test_on_a_cpu_the_launcher_is_run_with_sglangs_python_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("GYRE_KEY_SECRET", "s")
    command, environment = command_of(LAUNCH, 7)
    assert command[0] == "/sglang/python"
    assert Path(command[1]).is_file()
    options = options_of(command)
    assert (options["--weight-version"], options["--port"]) == ("0.3", "7")
    assert (options["--context-length"], options["--max-running-requests"]) == ("71", "2")
    assert int(options["--max-total-tokens"]) >= 2 * 71
    assert "--sleep-on-idle" in options
    assert environment["PYTHONPATH"] == str(CPU)
    assert (environment["HOME"], environment["OMP_NUM_THREADS"]) == ("/h", "2")
    assert "GYRE_KEY_SECRET" not in environment


def test_on_a_gpu_it_is_started_plainly_with_its_memory_saver() -> None:
    launch = replace(LAUNCH, device="cuda", tensor=2, memory_fraction=0.7)
    command, environment = command_of(launch, 7)
    assert command[:3] == ["/sglang/python", "-m", "sglang.launch_server"]
    assert "--enable-memory-saver" in command
    options = options_of(command)
    assert (options["--tp-size"], options["--mem-fraction-static"]) == ("2", "0.7")
    assert "--dtype" not in options
    assert str(CPU) not in environment.get("PYTHONPATH", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"python": None}, "run `gyre engines install sglang`"),
        ({"tensor": 2}, "engine.tensor"),
        ({"tensor": 2, "kind": "local"}, "engine.tensor"),
    ],
)
def test_what_cannot_be_started_is_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineStartError, match=says) as caught:
        command_of(replace(LAUNCH, **change), 7)
    assert "\n" not in str(caught.value)


async def test_an_engine_that_cannot_be_started_leaves_nothing_to_stop(tmp_path: Path) -> None:
    engine = EngineProcess(log_path=tmp_path / "engine.log")
    with pytest.raises(EngineStartError, match="gyre engines install sglang"):
        await engine.start(replace(LAUNCH, python=None))
    await engine.stop()
    assert not (tmp_path / "engine.log").exists()


def test_sglangs_python_is_what_the_settings_say_else_what_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert installed_python() is None
    told, noted = tmp_path / "told", tmp_path / "noted"
    (tmp_path / "gyre-env.json").write_text(json.dumps({INSTALLED: str(noted)}))
    assert (installed_python(), installed_python(told)) == (None, None)
    told.touch()
    noted.touch()
    assert (installed_python(), installed_python(told)) == (noted, told)
    assert startable(noted) == ("local", "sglang")
    assert startable(None) == ("local",)


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


def test_an_installation_is_noted_where_that_environments_agents_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which need not be the environment of the checkout that the pins come from."""
    environment, python = tmp_path / "environment", tmp_path / "python"
    environment.mkdir()
    python.write_text("#!/bin/sh\necho 0.5.23\n")
    python.chmod(0o755)
    command = [sys.executable, str(ROOT / "scripts" / "sglang.py"), "--python", str(python)]
    command += ["--notes", str(environment / "gyre-env.json")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert installed_python() == python
