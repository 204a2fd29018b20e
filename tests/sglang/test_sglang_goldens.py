"""The real SGLang still answers as it was recorded, so that what holds `local` to the recordings
holds it to SGLang."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gyre.testkit.engine_cases import Record
from gyre.testkit.engine_fixtures import SharedEngines
from gyre.testkit.sglang_goldens import golden_names, unlike_the_golden

GOLDENS = Path(__file__).parents[1] / "contract" / "goldens" / "sglang"


@pytest.fixture(scope="module")
def records(shared_engines: SharedEngines) -> dict[str, Record]:
    return asyncio.run(shared_engines.play("sglang"))


@pytest.mark.parametrize("name", golden_names(GOLDENS))
def test_sglang_answers_as_it_was_recorded(name: str, records: dict[str, Record]) -> None:
    assert unlike_the_golden(GOLDENS, name, records[name], also_of_its_processes=True) == []
