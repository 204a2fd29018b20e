"""`local` answers in the shapes that the real SGLang 0.5.23 was recorded to answer in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gyre.testkit.engine_cases import Record
from gyre.testkit.engine_fixtures import SharedEngines
from gyre.testkit.sglang_goldens import golden_names, unlike_the_golden

GOLDENS = Path(__file__).parent / "goldens" / "sglang"

SKIPPED = {
    "aborted_retracted": "local keeps the tokens of a retracted request that is aborted",
}


@pytest.fixture(scope="module")
def records(shared_engines: SharedEngines) -> dict[str, Record]:
    return asyncio.run(shared_engines.play("local"))


def test_the_recordings_are_there() -> None:
    assert len(golden_names(GOLDENS)) > 50


@pytest.mark.parametrize("name", golden_names(GOLDENS))
def test_local_answers_in_the_recorded_shape(name: str, records: dict[str, Record]) -> None:
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    assert unlike_the_golden(GOLDENS, name, records[name]) == []
