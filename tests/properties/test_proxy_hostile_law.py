"""Whatever a client sends is a request or the client's own fault: no body makes the proxy fail."""

from __future__ import annotations

import copy

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.core.matching import Matcher
from gyre.core.tree import Tree
from gyre.proxy.apis.base import Opened
from gyre.proxy.app import APIS
from gyre.proxy.codecs.encoding import Codec, load_codec
from gyre.proxy.requests import BadRequest, Sampling
from gyre.proxy.turns import as_answer
from gyre.testkit.hostile_bodies import VALID, edited
from gyre.testkit.tiny_model import make_tiny_model

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
BOUNDED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    model = make_tiny_model(tmp_path_factory.mktemp("hostile") / "m", seed=0)
    return load_codec(str(model), "qwen3")


def served(path: str, body: bytes, codec: Codec) -> bool:
    """Whether `body` is a request; if so it is planned and answered, if not it is refused."""
    api = APIS[path]
    try:
        exchange = api.parse(body, {"user-agent": "x"}, SAMPLING)
    except BadRequest as fault:
        reply = api.error(fault)
        assert 400 <= reply.status < 500
        assert isinstance(orjson.loads(reply.body)["error"]["message"], str)
        return False
    request = exchange.request
    matcher = Matcher(Tree())
    try:
        plan = matcher.plan(request.messages, request.tools, attempt=1, encoder=codec)
    except (RecursionError, orjson.JSONEncodeError):  # `Calls` refuses: nothing has changed yet
        assert not matcher.tree.nodes
        return False
    assert 0 < plan.num_input_tokens == len(matcher.tree.path_tokens(plan.parent))
    answer = as_answer(
        "e-c00000", codec.parse([]), created=0, finish="stop", num_input=1, num_output=0,
        num_cached=0,
    )  # fmt: skip
    opened = Opened(call="e-c00000", created=0, num_input_tokens=1)
    orjson.loads(exchange.body(answer))
    assert b"".join((exchange.opening(opened), exchange.idle(opened), *exchange.events(answer)))
    return True


@pytest.mark.parametrize("path", sorted(APIS))
def test_the_body_that_is_edited_is_valid(path: str, codec: Codec) -> None:
    assert served(path, orjson.dumps(VALID[path]), codec)


@pytest.mark.parametrize("path", sorted(APIS))
@BOUNDED
@given(data=st.data())
def test_wrong_types_anywhere_are_refused_or_served(
    path: str, codec: Codec, data: st.DataObject
) -> None:
    body = data.draw(edited(copy.deepcopy(VALID[path])))
    served(path, orjson.dumps(body), codec)


@pytest.mark.parametrize("path", sorted(APIS))
@BOUNDED
@given(cut=st.floats(0, 1), noise=st.binary(max_size=8))
def test_broken_bytes_are_refused(path: str, codec: Codec, cut: float, noise: bytes) -> None:
    whole = orjson.dumps(VALID[path])
    at = int(cut * (len(whole) - 1))
    served(path, whole[:at] + noise + whole[at + len(noise) :], codec)
    assert not served(path, whole[:at] + b"\xff" + whole[at:], codec)


@pytest.mark.parametrize("path", sorted(APIS))
@pytest.mark.parametrize("deep", ["[", '{"a":'])
def test_no_depth_ends_in_an_error_of_the_proxy(path: str, deep: str, codec: Codec) -> None:
    for field in VALID[path]:
        for depth in (400, 900, 1020, 100_000):
            close = "]" if deep == "[" else "}"
            value = deep * depth + "1" + close * depth
            rest = orjson.dumps({k: v for k, v in VALID[path].items() if k != field})
            served(path, rest[:-1] + f',"{field}":{value}}}'.encode(), codec)


def nested(depth: int) -> bytes:
    return b'{"type":"object","properties":{"a":' * depth + b"1" + b"}}" * depth


@pytest.mark.parametrize("path", sorted(APIS))
@pytest.mark.parametrize("depth", [50, 250, 450])
def test_no_depth_of_a_tool_ends_in_an_error(path: str, depth: int, codec: Codec) -> None:
    text = orjson.dumps(VALID[path]).replace(b'"SCHEMA"', nested(depth))
    served(path, text, codec)
