"""The shape of the repository: one namespace over many distributions, one direction of imports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DISTRIBUTIONS = sorted(
    path.parent
    for pattern in ("libs/*", "services/*")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)


def requirements(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def canonical(requirement: str) -> str:
    return re.split(r"[\[=<>;~! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_no_distribution_hides_the_others_by_an_init_file() -> None:
    assert [d for d in DISTRIBUTIONS if (d / "src" / "gyre" / "__init__.py").exists()] == []


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_each_distribution_is_one_typed_package_with_a_readme(distribution: Path) -> None:
    (package,) = [p for p in (distribution / "src" / "gyre").iterdir() if p.name != "__pycache__"]
    assert package.name == distribution.name.replace("-", "_")
    assert (package / "__init__.py").exists()
    assert (package / "py.typed").exists()
    assert (distribution / "README.md").exists()


def test_the_development_install_lists_every_distribution() -> None:
    listed = {line.removeprefix("-e ./") for line in requirements("dev.txt")}
    assert listed == {str(path.relative_to(ROOT)) for path in DISTRIBUTIONS}


@pytest.mark.parametrize("name", ["third-party.txt", "constraints.txt", "harness-llm.txt"])
def test_every_requirement_is_pinned(name: str) -> None:
    assert [line for line in requirements(name) if "==" not in line] == []


def test_what_the_distributions_need_is_in_the_shared_environment() -> None:
    pinned = {canonical(line) for line in requirements("third-party.txt")}
    for distribution in DISTRIBUTIONS:
        project = tomllib.loads((distribution / "pyproject.toml").read_text())["project"]
        needed = {canonical(line) for line in project.get("dependencies", [])}
        third_party = {name for name in needed if not name.startswith("gyre-")}
        assert third_party - pinned == set(), distribution.name


def test_the_constraints_agree_with_the_requirements() -> None:
    pins = {}
    for line in requirements("constraints.txt"):
        pins[canonical(line)] = line.partition("==")[2]
    for line in requirements("third-party.txt"):
        assert pins[canonical(line)] == line.partition("==")[2]


def test_contracts_and_core_alone_pull_in_no_torch_no_nats_no_database() -> None:
    script = (
        "import importlib, pkgutil, sys\n"
        "import gyre.contracts, gyre.core\n"
        "for top in (gyre.contracts, gyre.core):\n"
        "    for module in pkgutil.walk_packages(top.__path__, top.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "heavy = {'torch', 'nats', 'sqlalchemy', 'psycopg', 'transformers', 'fastapi', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_imports_point_one_way() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/lint_imports.py", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout
