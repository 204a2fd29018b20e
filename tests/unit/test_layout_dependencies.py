"""Each distribution declares what it imports: nothing arrives only because another one needs it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DISTRIBUTIONS = sorted(
    path.parent
    for pattern in ("libs/*", "services/*")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
PROVIDERS = packages_distributions()
# Halves of one interface: each is pinned by the distribution that it comes with.
COMES_WITH = {"pydantic_core": "pydantic", "starlette": "fastapi"}


def canonical(name: str) -> str:
    return re.split(r"[\[=<>;~! ]", name, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def declared(distribution: Path) -> set[str]:
    project = tomllib.loads((distribution / "pyproject.toml").read_text())["project"]
    return {canonical(line) for line in project.get("dependencies", [])}


def imported(distribution: Path) -> set[str]:
    """Dotted names of every import, also those inside functions."""
    names: set[str] = set()
    for path in (distribution / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
                if node.module == "gyre":
                    names |= {f"gyre.{alias.name}" for alias in node.names}
    return names


def siblings(names: set[str]) -> set[str]:
    """The distributions of ours that `names` come from."""
    parts = [name.split(".") for name in names if name.startswith("gyre.")]
    return {"gyre-" + part[1].replace("_", "-") for part in parts}


def third_party(names: set[str]) -> set[str]:
    """Top-level modules that are neither ours nor Python's."""
    tops = {name.split(".")[0] for name in names}
    return tops - set(sys.stdlib_module_names) - {"gyre"}


def providers(module: str) -> set[str]:
    """Distributions that bring `module`; its own name where none is installed."""
    if module in COMES_WITH:
        return {COMES_WITH[module]}
    return {canonical(name) for name in PROVIDERS.get(module, [module])}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_what_is_imported_is_declared(distribution: Path) -> None:
    names, known = imported(distribution), declared(distribution)
    undeclared = {module for module in third_party(names) if not known & providers(module)}
    assert undeclared == set()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_imports_of_our_own_distributions_are_declared(distribution: Path) -> None:
    own = canonical(f"gyre-{distribution.name}")
    assert siblings(imported(distribution)) - {own} - declared(distribution) == set()
