"""The `local` engine as a process: how it starts, refuses to start, and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from gyre.testkit.tiny_model import make_tiny_model

MODULE = [sys.executable, "-m", "gyre.cell_agent.engine.local"]
TIMEOUT_S = 60


def test_a_directory_without_a_model_is_one_line_and_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MODULE, "--model-path", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "config.json" in done.stderr


def test_a_bad_flag_is_status_2() -> None:
    done = subprocess.run(
        [*MODULE, "--model-path", "x", "--threads", "0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 2
    assert "--threads" in done.stderr


def test_it_takes_a_free_port_says_so_and_ends_on_sigterm_in_mid_request(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    process = subprocess.Popen(
        [*MODULE, "--model-path", str(model), "--port", "0", "--context-length", "2048"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split("listening on ")[1].strip()
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
        call = threading.Thread(target=_post_and_ignore, args=(url, body))
        call.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not httpx.get(f"{url}/v1/loads").json()["loads"][0]["num_running_reqs"]:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        call.join(timeout=10)
        assert not call.is_alive()
    finally:
        process.kill()
        process.wait(timeout=10)
        assert process.stderr is not None
        process.stderr.close()


def _post_and_ignore(url: str, body: dict[str, object]) -> None:
    """The answer is beside the point here: the server is told to end meanwhile."""
    try:
        httpx.post(f"{url}/generate", json=body, timeout=TIMEOUT_S)
    except httpx.TransportError:
        return
