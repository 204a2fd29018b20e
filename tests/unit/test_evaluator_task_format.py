"""Harbor's task format and the reward files, as text."""

from __future__ import annotations

import pytest

from gyre.core.task_format import (
    InvalidReward,
    InvalidTask,
    Reward,
    checked_task_name,
    parse_instruction,
    parse_reward_json,
    parse_reward_text,
    parse_settings,
)


def test_settings_are_read() -> None:
    settings = parse_settings(
        'version = "1.0"\n[metadata]\ncategory = "sum"\n[agent]\ntimeout_sec = 60\n'
    )
    assert settings.agent_timeout_s == 60.0
    assert settings.verifier_timeout_s is None
    assert settings.metadata == {"category": "sum"}


@pytest.mark.parametrize(
    "text", ["[agent", "agent = 3", "[agent]\ntimeout_sec = -1", '[agent]\ntimeout_sec = "x"']
)
def test_broken_settings_name_the_file(text: str) -> None:
    with pytest.raises(InvalidTask, match=r"task\.toml"):
        parse_settings(text)


def test_an_instruction_is_stripped_and_never_empty() -> None:
    assert parse_instruction("\nDo it\n\n") == "Do it"
    with pytest.raises(InvalidTask, match=r"instruction\.md"):
        parse_instruction(" \n")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_task_never_leaves_its_set(name: str) -> None:
    with pytest.raises(InvalidTask):
        checked_task_name(name)
    assert checked_task_name("train-000.sum") == "train-000.sum"


@pytest.mark.parametrize(("text", "value"), [("0\n", 0.0), (" 0.5", 0.5), ("1e0", 1.0), ("-2", -2)])
def test_a_reward_text_is_one_finite_number(text: str, value: float) -> None:
    assert parse_reward_text(text).value == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "one", "0.5 0.5", "1e999"])
def test_anything_else_is_no_reward(text: str) -> None:
    with pytest.raises(InvalidReward):
        parse_reward_text(text)


def test_a_reward_json_names_its_reward() -> None:
    assert parse_reward_json('{"reward": 1, "style": 0.5}') == Reward(
        value=1.0, parts={"reward": 1.0, "style": 0.5}
    )
    assert parse_reward_json('{"score": 0.25}').value == 0.25


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "1",
        "{",
        '{"a": 1, "b": 2}',
        '{"reward": true}',
        '{"reward": NaN}',
        '{"reward": "1"}',
        '{"reward": 1' + "0" * 400 + "}",
        "[" * 60_000,
    ],
)
def test_any_other_json_is_no_reward(text: str) -> None:
    with pytest.raises(InvalidReward):
        parse_reward_json(text)
