"""Gyre's own stack as a plan: the right processes with the settings that they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.adapters.settings import ServiceSettings
from gyre.cell_agent.settings import CellAgentSettings
from gyre.embedded.errors import EmbeddedError
from gyre.embedded.paths import StackPaths, read_json
from gyre.embedded.process import ProcessSpec
from gyre.embedded.stack import StackPlan, standard
from gyre.evaluator.settings import EvaluatorSettings
from gyre.proxy.settings import ProxySettings
from gyre.runner.settings import RunnerSettings
from gyre.scheduler.settings import SchedulerSettings
from gyre.trajectory.settings import TrajectorySettings

OUTSIDE = {
    "GYRE_NATS_URL": "nats://somewhere:4222",
    "GYRE_DATABASE_URL": "postgresql+psycopg://user@somewhere/db",
    "PATH": os.defpath,
}
SETTINGS: dict[str, type[ServiceSettings]] = {
    "scheduler": SchedulerSettings,
    "runner": RunnerSettings,
    "proxy": ProxySettings,
    "proxy-1": ProxySettings,
    "evaluator": EvaluatorSettings,
    "trajectory": TrajectorySettings,
    "cell-0": CellAgentSettings,
    "cell-1": CellAgentSettings,
}


@pytest.fixture
def paths(tmp_path: Path) -> StackPaths:
    paths = StackPaths.of(tmp_path / "a home")
    paths.create()
    return paths


@pytest.fixture
def plan(paths: StackPaths) -> Iterator[StackPlan]:
    plan = standard(paths, 2, OUTSIDE | {"GYRE_PROXIES": "2"})
    yield plan
    for listener in plan.held:
        listener.close()


def specs(plan: StackPlan) -> dict[str, ProcessSpec]:
    return {spec.name: spec for stage in plan.stages for spec in stage}


def test_the_stack_has_every_service_and_one_agent_a_cell(plan: StackPlan) -> None:
    assert set(specs(plan)) == {"prepare", "store", *SETTINGS}
    assert [spec.name for spec in plan.stages[0]] == ["prepare"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_starts_from_the_environment_of_the_stack(
    plan: StackPlan, paths: StackPaths, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [key for key in os.environ if key.startswith("GYRE_")]:
        monkeypatch.delenv(variable)
    for variable, value in specs(plan)[name].env.items():
        monkeypatch.setenv(variable, value)
    settings = SETTINGS[name]()
    assert settings.home == paths.home
    assert settings.nats_url == OUTSIDE["GYRE_NATS_URL"]


def test_each_proxy_alone_inherits_its_listening_socket(plan: StackPlan) -> None:
    names = ("proxy", "proxy-1")
    held = dict(zip(names, plan.held, strict=True))
    inheriting = {name: spec.pass_fds for name, spec in specs(plan).items() if spec.pass_fds}
    assert inheriting == {name: (listener.fileno(),) for name, listener in held.items()}
    for name, listener in held.items():
        env = specs(plan)[name].env
        assert env["GYRE_PROXY_LISTEN_FD"] == str(listener.fileno())
        assert env["GYRE_SERVICE_NAME"] == name
        assert float(env["GYRE_PROXY_LIMITS__OWNER_PATIENCE_S"]) > 0
    addresses = ["http://{}:{}".format(*listener.getsockname()) for listener in plan.held]
    assert specs(plan)["runner"].env["GYRE_PROXY_URL"] == ",".join(addresses)
    assert [plan.description.urls[name] for name in names] == addresses


def test_a_cell_has_an_agent_on_each_of_its_nodes(
    paths: StackPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = standard(paths, 2, OUTSIDE | {"GYRE_CELL_NODES": "3"})
    for listener in plan.held:
        listener.close()
    found = {}
    for name, spec in specs(plan).items():
        if spec.argv[-1] != "gyre.cell_agent":
            continue
        for variable, value in spec.env.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("GYRE_NODE", spec.env.get("GYRE_NODE", "0"))
        settings = CellAgentSettings()  # type: ignore[call-arg]
        assert settings.own_name == name
        found[name] = (settings.cell, settings.node, settings.cell_nodes)
    assert found == {
        **{f"cell-{cell}": (cell, 0, 3) for cell in range(2)},
        **{f"cell-{cell}-node-{n}": (cell, n, 3) for cell in range(2) for n in (1, 2)},
    }


@pytest.mark.parametrize("number", ["0", "65", "two", "-1"])
def test_a_wrong_number_of_nodes_is_refused(paths: StackPaths, number: str) -> None:
    with pytest.raises(EmbeddedError, match=f"GYRE_CELL_NODES={number}: must be"):
        standard(paths, 1, OUTSIDE | {"GYRE_CELL_NODES": number})


def test_one_proxy_is_reached_without_a_door_and_seals_at_once(paths: StackPaths) -> None:
    plan = standard(paths, 1, OUTSIDE)
    (listener,) = plan.held
    (name,) = [name for name in specs(plan) if name.startswith("proxy")]
    assert name == "proxy"
    assert "GYRE_PROXY_LIMITS__OWNER_PATIENCE_S" not in specs(plan)["proxy"].env
    port = listener.getsockname()[1]
    assert specs(plan)["runner"].env["GYRE_PROXY_URL"] == f"http://127.0.0.1:{port}"
    listener.close()


def test_cells_get_micro_steps_where_the_trajectory_service_serves_them(plan: StackPlan) -> None:
    port = specs(plan)["trajectory"].env["GYRE_BLOBS_PORT"]
    for name in ("cell-0", "cell-1"):
        assert specs(plan)[name].env["GYRE_BLOBS_URL"] == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("number", ["0", "-1", "two", "65", ""])
def test_a_wrong_number_of_proxies_is_refused(paths: StackPaths, number: str) -> None:
    with pytest.raises(EmbeddedError, match=f"GYRE_PROXIES={number}: must be"):
        standard(paths, 1, OUTSIDE | {"GYRE_PROXIES": number})


def test_the_next_start_takes_the_same_ports_where_they_are_free(paths: StackPaths) -> None:
    first = standard(paths, 1, OUTSIDE)
    for listener in first.held:
        listener.close()
    second = standard(paths, 1, OUTSIDE)
    assert second.description.ports == first.description.ports
    third = standard(paths, 1, OUTSIDE)  # the proxy's port is held by the second
    assert third.description.ports["proxy"] != second.description.ports["proxy"]
    for listener in (*second.held, *third.held):
        listener.close()


def test_secrets_are_made_once_and_the_environment_wins(paths: StackPaths) -> None:
    for listener in standard(paths, 1, OUTSIDE).held:
        listener.close()
    first = read_json(paths.secrets)
    for listener in standard(paths, 1, {**OUTSIDE, "GYRE_API_TOKEN": "mine"}).held:
        listener.close()
    second = read_json(paths.secrets)
    assert first is not None
    assert second == {**first, "api_token": "mine"}
    assert first["api_token"] != first["key_secret"]
    assert paths.secrets.stat().st_mode & 0o077 == 0


def test_no_secret_is_on_a_command_line(plan: StackPlan, paths: StackPaths) -> None:
    secrets = (read_json(paths.secrets) or {}).values()
    arguments = " ".join(arg for spec in specs(plan).values() for arg in spec.argv)
    assert [value for value in secrets if value in arguments] == []
