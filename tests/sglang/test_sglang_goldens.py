"""The real SGLang still answers as it was recorded, so that what holds `local` to the recordings
holds it to SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.testkit.engine_cases import Record, play
from gyre.testkit.engine_server import RunningEngine
from gyre.testkit.sglang_goldens import golden_names, unlike_the_golden

GOLDENS = Path(__file__).parents[1] / "contract" / "goldens" / "sglang"


@pytest.fixture(scope="module")
def records(server: Callable[[int], RunningEngine]) -> dict[str, Record]:
    running = server(0)
    return asyncio.run(play(running.url, running.models))


@pytest.mark.parametrize("name", golden_names(GOLDENS))
def test_sglang_answers_as_it_was_recorded(name: str, records: dict[str, Record]) -> None:
    assert unlike_the_golden(GOLDENS, name, records[name], also_of_its_processes=True) == []
