"""docker-compose.yml against the services' own settings: it parses, and every variable is read."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gyre.adapters.settings import ServiceSettings
from gyre.cell_agent.settings import CellAgentSettings
from gyre.evaluator.settings import EvaluatorSettings
from gyre.proxy.settings import ProxySettings
from gyre.runner.settings import RunnerSettings
from gyre.scheduler.settings import SchedulerSettings
from gyre.trajectory.settings import TrajectorySettings

ROOT = Path(__file__).parent.parent.parent
SETTINGS: dict[str, type[ServiceSettings]] = {
    "gyre.scheduler": SchedulerSettings,
    "gyre.runner": RunnerSettings,
    "gyre.proxy": ProxySettings,
    "gyre.evaluator": EvaluatorSettings,
    "gyre.trajectory": TrajectorySettings,
    "gyre.cell_agent": CellAgentSettings,
}
SERVERS = {"nats", "postgres"}
SECRETS = {
    "GYRE_API_TOKEN": "t",
    "GYRE_KEY_SECRET": "k",
    "GYRE_NATS_PASSWORD": "n",
    "GYRE_POSTGRES_PASSWORD": "p",
}


def compose() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return value


SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def module_of(service: dict[str, Any]) -> str:
    match = re.search(r"python -m ([\w.]+)", service["command"])
    assert match is not None
    return match.group(1)


OURS = {name: module_of(service) for name, service in SERVICES.items() if name not in SERVERS}
WITH_SETTINGS = {name: SETTINGS[module] for name, module in OURS.items() if module in SETTINGS}


def filled(value: str) -> str:
    """`value` with its ${...} filled in, as compose does: a secret, else what `:-` gives."""

    def of(match: re.Match[str]) -> str:
        return SECRETS[match[1]] if match[1] in SECRETS else str(match[2])

    return re.sub(r"\$\{(\w+)(?::-([^}]*)|[^}]*)\}", of, value)


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_a_service_gets_only_variables_that_it_reads(name: str) -> None:
    known = {f"GYRE_{field.upper()}" for field in WITH_SETTINGS[name].model_fields}
    assert {variable.split("__")[0] for variable in SERVICES[name]["environment"]} <= known


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_a_service_starts_from_its_variables_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [key for key in os.environ if key.startswith("GYRE_")]:
        monkeypatch.delenv(variable)
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, filled(value))
    WITH_SETTINGS[name]()


def test_every_service_of_the_system_is_there() -> None:
    assert set(SETTINGS) <= set(OURS.values())


@pytest.mark.parametrize("module", sorted(set(OURS.values())))
def test_each_command_names_a_module_that_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_proxies_may_be_scaled() -> None:
    """The runner finds each by their name, they share no file, and leave seals to one another."""
    proxy = SERVICES["proxy"]
    port = proxy["environment"]["GYRE_PROXY_PORT"]
    assert SERVICES["runner"]["environment"]["GYRE_PROXY_URL"] == f"dns+http://proxy:{port}"
    assert float(proxy["environment"]["GYRE_PROXY_LIMITS__OWNER_PATIENCE_S"]) > 0
    assert "GYRE_SERVICE_NAME=proxy-$$HOSTNAME " in proxy["command"]
    assert "/proxy-$$HOSTNAME.ready" in proxy["healthcheck"]["test"][1]
    assert "container_name" not in proxy
    assert "ports" not in proxy


def test_both_profiles_have_the_same_cells() -> None:
    cells = {
        profile: sorted(
            service["environment"]["GYRE_CELL"]
            for service in SERVICES.values()
            if profile in service.get("profiles", [])
        )
        for profile in ("cpu", "gpu")
    }
    assert cells["cpu"] == cells["gpu"] == ["0", "1", "2"]


def test_a_cell_is_reached_under_the_name_that_it_gives() -> None:
    for name, service in SERVICES.items():
        if service.get("profiles"):
            assert service["environment"]["GYRE_CELL_HOST"] == name


def test_each_cell_gets_micro_steps_where_the_trajectory_service_serves_them() -> None:
    port = SERVICES["trajectory"]["environment"]["GYRE_BLOBS_PORT"]
    cells = [service["environment"] for service in SERVICES.values() if service.get("profiles")]
    assert {cell["GYRE_BLOBS_URL"] for cell in cells} == {f"http://trajectory:{port}"}


def test_only_gpu_cells_reserve_a_device() -> None:
    reserving = {name for name, service in SERVICES.items() if "deploy" in service}
    assert reserving == {name for name, s in SERVICES.items() if "gpu" in s.get("profiles", [])}


def test_ports_are_published_on_the_loopback_interface_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_no_secret_stands_in_the_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for variable in SECRETS:
        assert f"${{{variable}:?" in text
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert {name: example[name] for name in SECRETS} == dict.fromkeys(SECRETS, "")


def test_what_runs_on_is_watched_and_what_is_downloaded_is_pinned() -> None:
    for name, service in SERVICES.items():
        if name != "prepare":
            assert "healthcheck" in service, name
        assert re.search(r":\d+\.\d+", service["image"]), name


def test_a_service_waits_for_what_it_needs() -> None:
    assert SERVICES["prepare"]["depends_on"] == {
        "nats": {"condition": "service_healthy"},
        "postgres": {"condition": "service_healthy"},
    }
    for name in OURS:
        if name != "prepare":
            assert SERVICES[name]["depends_on"]["prepare"]["condition"] == (
                "service_completed_successfully"
            )


@pytest.mark.parametrize("name", ["services", "cell-agent"])
def test_an_image_is_pinned_built_in_stages_and_runs_as_an_ordinary_user(name: str) -> None:
    lines = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text().splitlines()
    stages = [line.split() for line in lines if line.startswith("FROM")]
    named = {stage[3] for stage in stages}
    bases = {stage[1] for stage in stages} - named
    assert bases == {"python:3.11.14-slim-bookworm"}
    assert len(stages) > 1
    assert "USER gyre" in lines


def test_what_an_image_copies_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for dockerfile in (ROOT / "deploy" / "docker").glob("*.Dockerfile"):
        for line in dockerfile.read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                source = line.split()[1]
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs docker-compose")
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_compose_itself_accepts_the_file(profile: str, tmp_path: Path) -> None:
    env_file = tmp_path / "env"
    env_file.write_text("".join(f"{name}={value}\n" for name, value in SECRETS.items()))
    command = ["docker-compose", "--env-file", str(env_file), "--profile", profile, "config"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["services"]) >= SERVERS
