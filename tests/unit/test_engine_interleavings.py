"""Whatever happens around a request, it samples what it would have sampled alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gyre.cell_agent.engine.local.config import read_model_config
from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.params import parse_generate
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.runner import Capacity, ModelRunner
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.testkit.tiny_model import make_tiny_model

NEW_TOKENS = 10
VOCAB = 512
NUM_PROMPTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A model, and what each of six prompts (with a shared prefix) leads to."""

    directory: Path
    model: Transformer
    prompts: list[list[int]]
    answers: list[list[int]]


def make_scheduler(world_model: Transformer, directory: Path, slots: int, cache: int) -> Scheduler:
    capacity = Capacity(num_slots=slots, context_length=64, cache_tokens=cache)
    ticks = iter(range(10**9))
    return Scheduler(
        runner=ModelRunner(world_model, capacity),
        codec=TextCodec(directory),
        weight_version="v0",
        clock=lambda: float(next(ticks)),
        rng=random.Random(0),
    )


def make_request(world: World, index: int, serial: int) -> Request:
    sampling = {
        "max_new_tokens": NEW_TOKENS,
        "temperature": 0.5,
        "sampling_seed": index,
        "ignore_eos": True,
    }
    prompt = world.prompts[index]
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    asked = parse_generate(body, VOCAB)
    return Request(f"{serial:04d}", prompt, asked, NEW_TOKENS, frozenset(), float(serial))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = make_tiny_model(tmp_path_factory.mktemp("model"))
    model = Transformer(read_model_config(directory).shapes, 64)
    prompts = [[*range(50, 70), 100 + index, *range(20, 22 + index)] for index in range(6)]
    world = World(directory=directory, model=model, prompts=prompts, answers=[])
    with torch.inference_mode():
        model.load(read_checkpoint(directory))
        for index in range(NUM_PROMPTS):
            scheduler = make_scheduler(model, directory, 1, 64)
            request = make_request(world, index, 0)
            scheduler.submit(request)
            while scheduler.has_work:
                scheduler.step()
            world.answers.append(request.output_ids)
    return world


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


def disturb(scheduler: Scheduler, rng: random.Random, requests: list[tuple[int, Request]]) -> None:
    """One random command, or some steps."""
    match rng.choice(["step", "step", "step", "abort", "withdraw", "pause", "resume", "flush"]):
        case "step":
            for _ in range(rng.randint(1, 4)):
                scheduler.step()
        case "abort":
            scheduler.abort(rng.choice(requests)[1].rid)
        case "withdraw":
            scheduler.withdraw(rng.choice(requests)[1])
        case "pause":
            scheduler.pause(retract=rng.random() < 0.7)
        case "resume":
            scheduler.resume()
        case _:
            scheduler.flush()


@pytest.mark.parametrize("seed", range(12))
def test_commands_between_steps_never_change_what_is_sampled(world: World, seed: int) -> None:
    rng = random.Random(seed)
    slots, cache = rng.choice([(1, 30), (3, 40), (8, 200)])
    scheduler = make_scheduler(world.model, world.directory, slots, cache)
    requests: list[tuple[int, Request]] = []
    for serial in range(30):
        index = rng.randrange(NUM_PROMPTS)
        requests.append((index, make_request(world, index, serial)))
        scheduler.submit(requests[-1][1])
        disturb(scheduler, rng, requests)
        assert len(scheduler.running) <= slots
        for _, request in requests:
            places = (request in scheduler.waiting) + (request in scheduler.running)
            assert places == (request.finish is None)
    scheduler.resume()
    while scheduler.has_work:
        scheduler.step()
    for index, request in requests:
        assert request.finish is not None
        count = len(request.output_ids)
        assert request.output_ids == world.answers[index][:count]
        assert len(request.logprobs) == count
        if request.finish.type == "length":
            assert count == NEW_TOKENS
    assert len({id(news) for news in scheduler.take_news()}) == len(requests)
