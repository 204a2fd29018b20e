"""gpt-oss's messages are written as openai_harmony writes them, without its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.codecs.families import FAMILIES
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.testkit.family_tokenizers import make_family_tokenizer

CASES = json.loads((Path(__file__).parent / "goldens/harmony.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = make_family_tokenizer(tmp_path_factory.mktemp("harmony") / "m", "gpt-oss")
    return FAMILIES["gpt-oss"].build(FastTokenizer(path))


@pytest.mark.parametrize("case", CASES)
def test_messages_are_written_as_recorded(renderer: Any, case: dict[str, Any]) -> None:
    tools = case["tools"] or None
    ids = renderer.render_ids(case["messages"], tools=tools, add_generation_prompt=True)
    assert renderer._tokenizer.decode(ids) == case["text"]


def test_no_vocabulary_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """openai_harmony keeps what it fetches, and fails where it cannot."""
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    monkeypatch.setenv("TIKTOKEN_RS_CACHE_DIR", str(tmp_path / "cache"))
    path = make_family_tokenizer(tmp_path / "m", "gpt-oss")
    renderer = FAMILIES["gpt-oss"].build(FastTokenizer(path))
    assert renderer.render_ids([{"role": "user", "content": "x"}])
    assert not (tmp_path / "cache").exists()
