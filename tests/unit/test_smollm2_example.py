"""The SmolLM2 example: its agent, its tasks and their scores are what they say."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gyre.cli.jobfile import load_job_file
from gyre.contracts.job import JobSpec
from gyre.testkit.modules import load_module

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
SYSTEM = load_module(EXAMPLE / "ask.py", "smollm2_ask").SYSTEM


def test_no_training_task_has_a_heldout_word(tmp_path: Path) -> None:
    tasks = load_module(EXAMPLE / "tasks.py", "smollm2_tasks")
    tasks.main(["--out", str(tmp_path), "--num-train", "5", "--num-heldout", "3"])
    words = {
        split: [
            set((task / "instruction.md").read_text().split())
            for task in sorted((tmp_path / split).iterdir())
        ]
        for split in ("train", "heldout")
    }
    assert [len(found) for found in words.values()] == [5, 3]
    assert all(len(triple) == 3 for triples in words.values() for triple in triples)
    assert not set(tasks.TRAIN) & set(tasks.HELDOUT)
    assert set().union(*words["train"]) <= set(tasks.TRAIN)
    assert set().union(*words["heldout"]) <= set(tasks.HELDOUT)
    assert tasks.draw_words(random.Random(1), tasks.TRAIN, 9) == tasks.draw_words(
        random.Random(1), tasks.TRAIN, 9
    )


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("The Frog sat by the lamp in the rain.", "1.0000"),
        ("A froggy lamp.", "0.3333"),
        ("", "0.0000"),
        ("frog lamp rain " + "and " * 18, "0.5000"),
    ],
)
def test_a_score_is_the_share_of_the_words_halved_for_a_long_answer(
    tmp_path: Path, answer: str, reward: str
) -> None:
    tasks = load_module(EXAMPLE / "tasks.py", "smollm2_tasks")
    tasks.write_task(tmp_path / "task", ("frog", "lamp", "rain"))
    (tmp_path / "answer.txt").write_text(answer)
    subprocess.run(
        [tmp_path / "task" / "tests" / "test.sh"],
        cwd=tmp_path,
        env={"TESTS_DIR": str(tmp_path / "task" / "tests"), "LOGS_DIR": str(tmp_path / "logs")},
        check=True,
    )
    assert (tmp_path / "logs" / "verifier" / "reward.txt").read_text().strip() == reward


@pytest.fixture
def answering() -> Iterator[tuple[str, list[str], list[Any]]]:
    """A chat API that says what the list holds, one after another, and keeps what it was asked."""
    answers: list[str] = []
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps({"choices": [{"message": {"content": answers.pop(0)}}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", answers, asked
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (["Frog, lamp and rain."], "Frog, lamp and rain."),
        (["A frog and rain.", "A lamp."], "A lamp."),
    ],
)
def test_the_agent_asks_again_for_what_an_answer_lacks_once(
    tmp_path: Path,
    answering: tuple[str, list[str], list[Any]],
    said: list[str],
    last: str,
) -> None:
    url, answers, asked = answering
    answers += said
    subprocess.run(
        [sys.executable, "-I", "-S", EXAMPLE / "ask.py", "frog lamp rain"],
        cwd=tmp_path,
        env={"BASE_URL": url, "API_KEY": "k"},
        check=True,
    )
    assert (tmp_path / "answer.txt").read_text() == last + "\n"
    assert len(asked) == len(said)
    first = "Write one short sentence with the words frog, lamp and rain."
    assert [it["content"] for it in asked[0]["messages"]] == [SYSTEM, first]
    if len(said) > 1:
        again = "Write it again, with the word lamp."
        assert [it["content"] for it in asked[1]["messages"]] == [SYSTEM, first, said[0], again]


def test_the_job_is_valid() -> None:
    job = JobSpec.model_validate(load_job_file(EXAMPLE / "job.yaml"))
    # Of what the tasks ask for an agent makes two turns and their messages at most.
    assert job.model.context_tokens > 2 * job.rollout.max_new_tokens + 120
