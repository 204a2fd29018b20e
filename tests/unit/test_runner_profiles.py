"""What each harness profile makes of an execution: command line, environment, files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gyre.core.execution import AttemptEnd, Exit
from gyre.core.harness import harness_profile
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.profile_harnesses import read_environments, read_programs
from gyre.runner.profiles import ExecutionContext, PreparedHarness, profile, profile_names

KEY = "the-key-of-this-attempt"
PROMPT = "--version /compact {key}"
PROGRAMS = ("claude-code", "codex")


def prepare(name: str, root: Path = Path("/attempt"), **settings: Any) -> PreparedHarness:
    context = ExecutionContext(
        prompt=PROMPT,
        workspace=root / "workspace",
        home=root / "home",
        tmp=root / "tmp",
        proxy_url="http://127.0.0.1:7410/",
        api_key=KEY,
        model_name="job",
        settings=settings,
        python=Path("/harness/bin/python"),
        program=Path("/harness/program"),
        context_tokens=50_000,
        max_new_tokens=2_000,
        call_timeout_s=100.0,
        timeout_s=7200.0,
    )
    return profile(name).prepare(context)


def test_what_can_be_started_is_what_a_job_may_name() -> None:
    for name in profile_names():
        assert harness_profile(name).name == name


@pytest.mark.parametrize("name", ["claude-code", "codex", "mini-swe-agent"])
def test_an_agent_gets_a_clean_environment_with_its_own_directories_and_key(name: str) -> None:
    prepared = prepare(name)
    assert prepared.env["HOME"] == "/attempt/home"
    assert prepared.env["TMPDIR"] == "/attempt/tmp"
    assert [value for value in prepared.env.values() if value == KEY] == [KEY]
    assert not any(KEY in text for text in (*prepared.argv, *prepared.files.values()))
    assert PROMPT in prepared.argv[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_prompt_is_never_read_as_an_option(name: str) -> None:
    assert prepare(name).argv[-2:] == ("--", PROMPT)


def test_claude_code_is_told_where_its_models_are_and_how_long_to_wait() -> None:
    env = prepare("claude-code").env
    expected = {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:7410",
        "ANTHROPIC_API_KEY": KEY,
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "50000",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "2000",
        "CLAUDE_CODE_TMPDIR": "/attempt/tmp",
        "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS": "7200000",
        "API_TIMEOUT_MS": "160000",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "160000",
        "API_FORCE_IDLE_TIMEOUT": "0",
    }
    assert {name: env.get(name) for name in expected} == expected
    models = {value for name, value in env.items() if name.endswith("_MODEL")}
    assert models == {"policy-model"}
    assert "MAX_THINKING_TOKENS" not in env


def test_claude_codes_settings_become_its_options() -> None:
    prepared = prepare(
        "claude-code", bare=True, tools=["Bash", "Edit"], thinking=False, env={"A": "b"}
    )
    assert {"--bare", "--tools=Bash,Edit"} <= set(prepared.argv)
    assert prepared.env["MAX_THINKING_TOKENS"] == "0"
    assert prepared.env["A"] == "b"


def test_codexs_configuration_is_toml_that_names_the_proxy() -> None:
    prepared = prepare("codex", config={"model_reasoning_effort": "low"})
    [(path, text)] = prepared.files.items()
    assert path == Path(prepared.env["CODEX_HOME"]) / "config.toml"
    config = tomllib.loads(text)
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:7410/v1"
    assert provider["wire_api"] == "responses"
    assert prepared.env[provider["env_key"]] == KEY
    assert provider["stream_idle_timeout_ms"] == 160_000
    assert config["model_context_window"] == 50_000
    assert config["model_auto_compact_token_limit"] == 46_000
    assert config["agents"]["enabled"] is False
    assert config["model_reasoning_effort"] == "low"


def test_mini_swe_agent_speaks_chat_completions_with_the_proxy() -> None:
    prepared = prepare("mini-swe-agent", step_limit=7)
    assert prepared.argv[0] == "/harness/bin/mini"
    assert "--config=agent.step_limit=7" in prepared.argv
    assert prepared.env["OPENAI_API_BASE"] == "http://127.0.0.1:7410/v1"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_not_installed_is_one_line_that_says_how(name: str) -> None:
    context = ExecutionContext(
        prompt="x",
        workspace=Path("w"),
        home=Path("h"),
        tmp=Path("t"),
        proxy_url="http://p",
        api_key="k",
        model_name="m",
        settings={},
    )
    with pytest.raises(HarnessMisconfigured, match=f"make harness HARNESS={name}"):
        profile(name).prepare(context)


@pytest.mark.parametrize("name", ["claude-code", "codex", "mini-swe-agent"])
def test_an_unknown_setting_is_one_line_that_names_it(name: str) -> None:
    with pytest.raises(HarnessMisconfigured, match=rf"^colour: .* \(harness {name}\)$"):
        profile(name).validate({"colour": "red"})


def test_the_environments_file_names_pythons_and_programs(tmp_path: Path) -> None:
    path = tmp_path / "gyre-env.json"
    path.write_text(json.dumps({"harness_a-b_python": "/p", "harness_codex_program": "/c", "x": 1}))
    with pytest.raises(HarnessMisconfigured, match="GYRE_HARNESS_ENVS"):
        read_environments(path)
    path.write_text(json.dumps({"harness_a-b_python": "/p", "harness_codex_program": "/c"}))
    assert read_environments(path) == {"a-b": Path("/p")}
    assert read_programs(path) == {"codex": Path("/c")}


RESULT = '{"type":"result","subtype":"success","is_error":%s,"result":"API Error: 529"}\n'


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (RESULT % "true", "API Error: 529"),
        ("a warning\n" + RESULT % "true", "API Error: 529"),
        ('{"type":"result","subtype":"error_max_turns","is_error":true}', "error_max_turns"),
        (RESULT % "false", None),
        ("", None),
        ("no JSON", None),
        ("[]", None),
        ('{"is_error":true}', None),
    ],
)
def test_claude_codes_result_says_whether_it_failed(
    tmp_path: Path, output: str, error: str | None
) -> None:
    stdout = tmp_path / "stdout.log"
    assert profile("claude-code").reported_error(stdout) is None
    stdout.write_text(output)
    assert profile("claude-code").reported_error(stdout) == error
    assert profile("codex").reported_error(stdout) is None


def test_a_clean_exit_that_reports_an_error_is_no_success() -> None:
    clean = Exit(exit_code=0, signal=None)
    assert AttemptEnd(exit=clean).succeeded
    assert not AttemptEnd(exit=clean, reported_error="API Error").succeeded
    assert not AttemptEnd(exit=Exit(exit_code=1, signal=None)).succeeded
