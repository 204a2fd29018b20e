"""Texts that no context holds are refused before they are encoded; what could fit never is."""

from __future__ import annotations

import pytest

from gyre.core.messages import Message
from gyre.proxy.codecs.encoding import Codec, load_codec
from gyre.proxy.overlong import refuse_overlong
from gyre.proxy.requests import ContextFull, Request
from gyre.testkit.tiny_model import make_tiny_model

CONTEXT = 2000


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    model = make_tiny_model(tmp_path_factory.mktemp("proxy_overlong") / "m", seed=0)
    return load_codec(str(model), "qwen3")


def request(*texts: str) -> Request:
    return Request(model="m", messages=tuple(Message(role="user", content=text) for text in texts))


def num_tokens(codec: Codec, text: str) -> int:
    [tokens] = codec.inputs((Message(role="user", content=text),))
    return len(tokens)


@pytest.mark.parametrize("texts", [("é" * 20_000,), ("é" * 10_000, "é" * 10_000)])
async def test_dense_text_is_refused_with_about_its_tokens(
    texts: tuple[str, ...], codec: Codec
) -> None:
    with pytest.raises(ContextFull) as refused:
        await refuse_overlong(request(*texts), codec, CONTEXT)
    exact = sum(num_tokens(codec, text) for text in texts)
    assert refused.value.num_tokens == pytest.approx(exact, rel=0.05)
    assert refused.value.context_tokens == CONTEXT


async def test_what_is_beyond_every_density_is_refused_unread(codec: Codec) -> None:
    with pytest.raises(ContextFull) as refused:
        await refuse_overlong(request(" " * 100_000), codec, CONTEXT)
    assert refused.value.num_tokens > CONTEXT


async def test_what_fits_is_never_refused(codec: Codec) -> None:
    word = "some words "
    fits = word * (CONTEXT // num_tokens(codec, word))
    assert num_tokens(codec, fits) <= CONTEXT
    await refuse_overlong(request(fits), codec, CONTEXT)
    # As many characters as are looked at, and the context for them.
    sparse = word * 2000
    await refuse_overlong(request(sparse), codec, num_tokens(codec, sparse))
    assert len(sparse) > 8 * 2000


async def test_many_short_messages_are_not_taken_for_long_text(codec: Codec) -> None:
    await refuse_overlong(request(*["hi"] * 500), codec, CONTEXT)
