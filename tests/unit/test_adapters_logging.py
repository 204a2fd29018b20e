"""Logs: one JSON line an event, ids from the context, no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from gyre.adapters.logging import bind, configure_logging, get_logger


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    stream = io.StringIO()
    configure_logging("runner", "INFO", secrets=["hunter2"], stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_line_has_service_action_level_time_and_fields(output: io.StringIO) -> None:
    get_logger().info("attempt_started", attempt=2)
    [line] = lines(output)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"service": "runner", "event": "attempt_started", "level": "info", "attempt": 2}


def test_bound_ids_are_on_every_line_inside_and_none_after(output: io.StringIO) -> None:
    log = get_logger()
    with bind(job="j1"), bind(execution="e7"):
        log.info("inside")
    log.info("after")
    inside, after = lines(output)
    assert (inside["job"], inside["execution"]) == ("j1", "e7")
    assert "job" not in after


def test_lower_levels_are_not_written(output: io.StringIO) -> None:
    get_logger().debug("detail")
    assert lines(output) == []


def test_secrets_are_masked_by_name_type_form_and_value(output: io.StringIO) -> None:
    get_logger().info(
        "called",
        api_token="abc",
        nested={"key_secret": "abc", "password": "abc", "list": [{"Authorization": "abc"}]},
        wrapped=SecretStr("abc"),
        url="nats://ann:abc@host:4222/x",
        header="Bearer abc.def",
        error="refused for hunter2",
    )
    [line] = lines(output)
    assert "abc" not in json.dumps(line)
    assert "hunter2" not in json.dumps(line)
    assert line["url"] == "nats://***@host:4222/x"


def test_token_ids_and_counts_are_no_secrets(output: io.StringIO) -> None:
    get_logger().info("recorded", token_ids=[1, 2], num_tokens=2, key_by="job")
    [line] = lines(output)
    assert (line["token_ids"], line["num_tokens"], line["key_by"]) == ([1, 2], 2, "job")


def test_the_standard_librarys_loggers_go_the_same_way(output: io.StringIO) -> None:
    logging.getLogger("somebody").warning("from %s with hunter2", "afar")
    [line] = lines(output)
    assert (line["service"], line["event"], line["level"]) == (
        "runner",
        "from afar with ***",
        "warning",
    )


def test_an_exception_is_one_line_with_its_traceback(output: io.StringIO) -> None:
    try:
        raise ValueError("hunter2 is wrong")
    except ValueError as error:
        get_logger().error("failed", exc_info=error)
    [line] = lines(output)
    assert "ValueError: *** is wrong" in line["exception"]
