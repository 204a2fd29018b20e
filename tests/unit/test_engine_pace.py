"""The emulated decode speed: when each request has its next token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.cell_agent.engine.local.config import read_model_config
from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.pace import Pace
from gyre.cell_agent.engine.local.params import parse_generate
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.runner import Capacity, ModelRunner
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.testkit.tiny_model import make_tiny_model

VOCAB = 512
RATE = 20.0


class Clock:
    """Virtual seconds; the machine itself costs nothing."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "a", seed=0)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.inference_mode():
        yield


def make_scheduler(directory: Path, clock: Clock, *, rate: float | None = RATE) -> Scheduler:
    model = Transformer(read_model_config(directory).shapes, 256)
    model.load(read_checkpoint(directory))
    capacity = Capacity(num_slots=8, context_length=256, cache_tokens=4096)
    return Scheduler(
        runner=ModelRunner(model, capacity),
        codec=TextCodec(directory),
        weight_version="v0",
        clock=clock,
        rng=random.Random(5),
        pace=None if rate is None else Pace(rate),
    )


def make_request(rid: str, prompt: list[int], num_tokens: int = 16) -> Request:
    sampling = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    asked = parse_generate({"input_ids": prompt, "sampling_params": sampling}, VOCAB)
    return Request(rid, prompt, asked, num_tokens, frozenset({2}), 0.0)


def live_until(scheduler: Scheduler, clock: Clock, end: float) -> None:
    """Step whenever there is something to do, as the model thread does."""
    for _ in range(10_000):
        delay = scheduler.work_in_s()
        if delay is None or clock.now + delay > end:
            clock.now = end
            return
        clock.now += delay
        scheduler.step()
    raise AssertionError("steps without progress")


def test_eight_requests_together_take_as_long_as_one_alone(directory: Path) -> None:
    def seconds(num_requests: int) -> float:
        clock = Clock()
        scheduler = make_scheduler(directory, clock)
        requests = [make_request(str(i), list(range(10 + i, 30))) for i in range(num_requests)]
        for request in requests:
            scheduler.submit(request)
        live_until(scheduler, clock, 60.0)
        ends = {request.finished_at for request in requests}
        assert all(len(request.output_ids) == 16 for request in requests)
        (end,) = ends
        assert end is not None
        return end

    assert seconds(1) == pytest.approx(15 / RATE)
    assert seconds(8) == pytest.approx(15 / RATE)


def test_requests_out_of_step_sample_what_they_sample_unpaced(directory: Path) -> None:
    """Who is not due when others are has its slot computed again later; nothing of it shows."""
    prompts = [list(range(10 + i, 25 + 2 * i)) for i in range(4)]
    paced, clock = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)], Clock()
    scheduler = make_scheduler(directory, clock)
    for request in paced:
        scheduler.submit(request)
        live_until(scheduler, clock, clock.now + 0.03)
    live_until(scheduler, clock, 60.0)
    free = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)]
    unpaced = make_scheduler(directory, Clock(), rate=None)
    for request in free:
        unpaced.submit(request)
    while unpaced.has_work:
        unpaced.step()

    assert [r.output_ids for r in paced] == [r.output_ids for r in free]


def test_a_pause_is_not_made_up_for(directory: Path) -> None:
    clock = Clock()
    scheduler = make_scheduler(directory, clock)
    request = make_request("a", [5, 6, 7], num_tokens=40)
    scheduler.submit(request)
    live_until(scheduler, clock, 0.5)
    held = len(request.output_ids)
    scheduler.pause(retract=False)
    live_until(scheduler, clock, 5.0)
    scheduler.resume()
    live_until(scheduler, clock, 5.5)

    assert len(request.output_ids) - held == pytest.approx(0.5 * RATE, abs=1)


@settings(max_examples=50)
@given(
    start=st.floats(0, 1e6),
    rate=st.floats(0.5, 500),
    delays=st.lists(st.floats(0, 0.3), min_size=1, max_size=40),
)
def test_no_token_comes_before_its_time_and_lateness_does_not_add_up(
    start: float, rate: float, delays: list[float]
) -> None:
    """Whenever the machine comes to look: token k not before start + k/rate, and, when it looks in
    time, less than one tick after."""
    pace, request, now = Pace(rate), make_request("a", [1]), start
    pace.begin(request, now)
    for k, delay in enumerate(delays, start=1):
        due = pace.next_due_s([request])
        assert due >= start + k / rate - 1e-6
        assert due <= start + (k + 1) / rate + 1e-6
        now = max(due, start + delay)
        assert pace.due([request], now) == [request]
