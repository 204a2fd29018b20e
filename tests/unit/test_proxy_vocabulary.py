"""A token that the model has no embedding for never leaves the proxy: it ends SGLang's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.codecs.tokenizer import FastTokenizer, ModelFilesError
from gyre.testkit.tiny_model import make_tiny_tokenizer


def tokenizer(path: Path, config: Any) -> FastTokenizer:
    make_tiny_tokenizer().save_pretrained(str(path))
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return FastTokenizer(path)


@pytest.mark.parametrize("text", ["lazy dog", "lazy dog " * 50])
def test_a_token_beyond_the_vocabulary_is_refused_where_it_is_encoded(
    tmp_path: Path, text: str
) -> None:
    [*_, last] = sorted(tokenizer(tmp_path, {}).encode(text))
    assert tokenizer(tmp_path, {"vocab_size": last + 1}).encode(text)
    short = tokenizer(tmp_path, {"text_config": {"vocab_size": last}})
    assert short.encode("") == []
    with pytest.raises(ModelFilesError, match=f"has token {last}, .* vocab_size is {last}"):
        short.encode(text)


@pytest.mark.parametrize("config", ["{", "[]", '{"vocab_size": "many"}'])
def test_a_config_that_cannot_be_read_is_the_jobs_fault(tmp_path: Path, config: str) -> None:
    with pytest.raises(ModelFilesError, match="cannot be read"):
        tokenizer(tmp_path, config)
