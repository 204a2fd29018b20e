"""`local` answers in the shapes that the real SGLang 0.5.23 was recorded to answer in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.testkit.engine_cases import Record, play
from gyre.testkit.engine_server import running_engine
from gyre.testkit.sglang_goldens import golden_names, unlike_the_golden
from gyre.testkit.tiny_model import make_tiny_model

GOLDENS = Path(__file__).parent / "goldens" / "sglang"

SKIPPED = {
    "aborted_retracted": "local keeps the tokens of a retracted request that is aborted",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    root = tmp_path_factory.mktemp("goldens")
    models = make_tiny_model(root / "m0", seed=0), make_tiny_model(root / "m1", seed=1)
    with running_engine("local", models, root / "engine.log") as engine:
        yield asyncio.run(play(engine.url, models))


def test_the_recordings_are_there() -> None:
    assert len(golden_names(GOLDENS)) > 50


@pytest.mark.parametrize("name", golden_names(GOLDENS))
def test_local_answers_in_the_recorded_shape(name: str, records: dict[str, Record]) -> None:
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    assert unlike_the_golden(GOLDENS, name, records[name]) == []
