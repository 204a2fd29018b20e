"""The scheduler of the local engine, driven step by step without HTTP."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.cell_agent.engine.local import scheduler as scheduler_module
from gyre.cell_agent.engine.local.config import read_model_config
from gyre.cell_agent.engine.local.errors import BadRequestError, UnavailableError, WeightsError
from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.params import parse_generate
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.responses import build_response
from gyre.cell_agent.engine.local.runner import Capacity, ModelRunner
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.testkit.tiny_model import make_tiny_model

VOCAB = 512


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return make_tiny_model(root / "a", seed=0), make_tiny_model(root / "b", seed=1)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.inference_mode():
        yield


def make_scheduler(directory: Path, slots: int = 8, cache_tokens: int = 4096) -> Scheduler:
    model = Transformer(read_model_config(directory).shapes, 256)
    model.load(read_checkpoint(directory))
    capacity = Capacity(num_slots=slots, context_length=256, cache_tokens=cache_tokens)
    ticks = iter(range(10**9))
    return Scheduler(
        runner=ModelRunner(model, capacity),
        codec=TextCodec(directory),
        weight_version="v0",
        clock=lambda: float(next(ticks)),
        rng=random.Random(5),
    )


def make_request(rid: str, prompt: list[int], **body: Any) -> Request:
    sampling = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    sampling |= body.pop("sampling_params", {})
    asked = parse_generate(
        {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, **body}, VOCAB
    )
    assert asked.sampling.max_new_tokens is not None
    return Request(
        rid, prompt, asked, asked.sampling.max_new_tokens, frozenset({2}), float(len(rid))
    )


def run(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.submit(request)
    for _ in range(500):
        if not scheduler.has_work:
            return
        scheduler.step()
    raise AssertionError("did not finish in 500 steps")


def test_decode_in_a_batch_equals_decode_alone(models: tuple[Path, Path]) -> None:
    prompts = [list(range(10 + i, 25 + 7 * i)) for i in range(8)]
    extra = {"temperature": 0.8, "top_p": 0.9}
    together = make_scheduler(models[0])
    batch = [
        make_request(
            f"b{i}", p, sampling_params={**extra, "sampling_seed": i, "max_new_tokens": 5 + 4 * i}
        )
        for i, p in enumerate(prompts)
    ]
    run(together, *batch)
    for index, prompt in enumerate(prompts):
        alone = make_request(
            "a",
            prompt,
            sampling_params={**extra, "sampling_seed": index, "max_new_tokens": 5 + 4 * index},
        )
        run(make_scheduler(models[0]), alone)
        assert batch[index].output_ids == alone.output_ids
        assert batch[index].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_repeated_prompt_hits_all_but_its_last_token(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    first, second = (make_request(rid, list(range(30, 90))) for rid in ("one", "two"))
    run(scheduler, first)
    run(scheduler, second)
    assert (first.cached_tokens, second.cached_tokens) == (0, 59)
    assert second.output_ids == first.output_ids
    assert second.logprobs == pytest.approx(first.logprobs, abs=1e-4)


def test_the_next_turn_hits_prompt_and_output(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    first = make_request("one", list(range(30, 60)))
    run(scheduler, first)
    turn = make_request("two", [*first.sequence, 7, 8, 9])
    run(scheduler, turn)
    assert turn.cached_tokens == len(first.sequence) - 1


def test_a_namespace_never_reads_another_ones_cache(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    run(scheduler, make_request("one", list(range(30, 60))))
    other = make_request("two", list(range(30, 60)), extra_key="lineage-2")
    run(scheduler, other)
    assert other.cached_tokens == 0


def test_more_requests_than_slots_wait_and_all_finish(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0], slots=3, cache_tokens=64)
    requests = [make_request(f"r{i}", list(range(10 + i, 40 + i))) for i in range(10)]
    for request in requests:
        scheduler.submit(request)
    while scheduler.has_work:
        scheduler.step()
        assert len(scheduler.running) <= 3
    assert [len(request.output_ids) for request in requests] == [12] * 10


def test_retract_keeps_tokens_and_continues_as_if_never_stopped(models: tuple[Path, Path]) -> None:
    plain = [make_request(f"p{i}", list(range(20 + i, 50))) for i in range(3)]
    run(make_scheduler(models[0]), *plain)
    scheduler = make_scheduler(models[0])
    stopped = [make_request(f"s{i}", list(range(20 + i, 50))) for i in range(3)]
    for request in stopped:
        scheduler.submit(request)
    for _ in range(4):
        scheduler.step()
    scheduler.pause(retract=True)
    assert (len(scheduler.running), len(scheduler.waiting)) == (0, 3)
    assert scheduler.flush()
    scheduler.step()
    assert [len(request.output_ids) for request in stopped] == [5, 5, 5]
    scheduler.resume()
    run(scheduler)
    assert [r.output_ids for r in stopped] == [r.output_ids for r in plain]
    assert [r.num_retractions for r in stopped] == [1, 1, 1]


def test_weights_replaced_under_retract_make_two_spans_of_the_right_model(
    models: tuple[Path, Path],
) -> None:
    scheduler = make_scheduler(models[0])
    request = make_request("r", list(range(20, 50)))
    scheduler.submit(request)
    for _ in range(4):
        scheduler.step()
    scheduler.pause(retract=True)
    scheduler.replace_weights(read_checkpoint(models[1]), complete=True, version="v1")
    assert scheduler.flush()
    scheduler.resume()
    run(scheduler)
    assert request.version_spans() == [
        {"version": "v0", "start": 0, "end": 5},
        {"version": "v1", "start": 5, "end": 12},
    ]
    fresh = make_request("f", request.sequence[:35], sampling_params={"max_new_tokens": 7})
    run(make_scheduler(models[1]), fresh)
    assert request.output_ids[5:] == fresh.output_ids
    assert request.logprobs[5:] == pytest.approx(fresh.logprobs, abs=1e-4)


def test_abort_keeps_what_was_produced(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0], slots=1)
    requests = [make_request(rid, list(range(20, 50))) for rid in ("ex-1", "ex-2", "other")]
    for request in requests:
        scheduler.submit(request)
    scheduler.step()
    scheduler.step()
    scheduler.abort("ex-")
    assert [r.finish.to_json() if r.finish else None for r in requests] == [
        {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        {"type": "abort", "message": "Abort in waiting queue"},
        None,
    ]
    assert [len(r.logprobs) for r in requests] == [3, 0, 0]
    run(scheduler)
    assert len(requests[2].output_ids) == 12


def test_a_request_that_never_ran_has_one_empty_span(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    request = make_request("r", list(range(20, 50)))
    scheduler.submit(request)
    scheduler.abort("r")
    assert request.version_spans() == [{"version": "v0", "start": 0, "end": 0}]
    nothing = make_request("n", [5, 6], sampling_params={"max_new_tokens": 0})
    run(scheduler, nothing)
    assert nothing.finish is not None
    assert nothing.finish.to_json() == {"type": "length", "length": 0}
    body = build_response(nothing, TextCodec(models[0]), "v0")
    assert body["output_ids"] == []
    assert body["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": 0}]


def test_flush_is_refused_while_requests_run(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    scheduler.submit(make_request("r", [5, 6, 7]))
    assert not scheduler.flush()
    scheduler.step()
    scheduler.pause(retract=False)
    assert not scheduler.flush()


def test_weights_that_do_not_fit_change_nothing(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    before = scheduler.runner.model.norm.clone()
    state = read_checkpoint(models[1]) | {"model.layers.0.mlp.up_proj.weight": torch.zeros(1)}
    with pytest.raises(WeightsError, match="wrong shape"):
        scheduler.replace_weights(state, complete=True, version="v1")
    assert torch.equal(scheduler.runner.model.norm, before)
    assert scheduler.weight_version == "v0"


def test_an_update_can_be_killed_between_two_parameters(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first hit of `engine.mid_update` one is new, the others are not, nor is the name."""
    old, new = read_checkpoint(models[0]), read_checkpoint(models[1])
    differing = {name for name in old if not torch.equal(old[name], new[name])}
    scheduler = make_scheduler(models[0])
    seen: list[set[str]] = []

    def look(name: str) -> None:
        assert (name, scheduler.weight_version) == ("engine.mid_update", "v0")
        parameters = scheduler.runner.model.parameters
        seen.append({name for name in differing if torch.equal(parameters[name], new[name])})

    monkeypatch.setattr(scheduler_module, "failpoint", look)
    scheduler.replace_weights(new, complete=True, version="v1")
    assert len(seen) == len(scheduler.runner.model.parameters)
    assert len(seen[0]) <= 1 < len(differing) == len(seen[-1])


def test_released_memory_refuses_requests_until_resumed(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    scheduler.submit(make_request("r", [5, 6, 7]))
    with pytest.raises(BadRequestError, match="idle"):
        scheduler.release_memory()
    run(scheduler)
    scheduler.release_memory()
    with pytest.raises(UnavailableError, match="resume_memory_occupation"):
        scheduler.submit(make_request("s", [5, 6, 7]))
    scheduler.resume_memory()
    again = make_request("t", [5, 6, 7])
    run(scheduler, again)
    assert (again.cached_tokens, len(again.output_ids)) == (0, 12)


def test_prompt_logprobs_are_those_of_the_teacher_forced_pass(models: tuple[Path, Path]) -> None:
    scheduler = make_scheduler(models[0])
    prompt = list(range(30, 60))
    run(scheduler, make_request("warm", prompt))
    request = make_request("r", prompt, logprob_start_len=10, top_logprobs_num=2)
    run(scheduler, request)
    assert request.cached_tokens == 10
    assert len(request.prompt_logprobs) == len(request.prompt_top) == 20
    assert request.prompt_logprobs[0] is None
    model = scheduler.runner.model
    kv = torch.zeros(2, 2, 2, 64, 16)
    logits = model.logits(model.prefill(torch.tensor(prompt), 0, kv))
    expected = logits.log_softmax(-1)[range(10, 29), prompt[11:]].tolist()
    assert request.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)


def test_stop_tokens_and_stop_strings_end_a_request(models: tuple[Path, Path]) -> None:
    free = make_request("free", list(range(20, 50)))
    run(make_scheduler(models[0]), free)
    codec = TextCodec(models[0])
    third = free.output_ids[2]
    stopped = make_request("stop", list(range(20, 50)), sampling_params={"ignore_eos": False})
    stopped.stop_token_ids = frozenset({third})
    scheduler = make_scheduler(models[0])
    run(scheduler, stopped)
    assert stopped.finish is not None
    assert stopped.finish.to_json() == {"type": "stop", "matched": third}
    assert stopped.output_ids == free.output_ids[: free.output_ids.index(third) + 1]
    piece = codec.decode(free.output_ids[3:5], skip_special_tokens=False)
    text = make_request("text", list(range(20, 50)), sampling_params={"stop": [piece]})
    run(scheduler, text)
    assert text.finish is not None
    assert text.finish.matched == piece
    assert piece not in codec.output_text(text, text.output_ids, text.finish)


def test_min_new_tokens_holds_the_stop_token_back(models: tuple[Path, Path]) -> None:
    free = make_request("free", list(range(20, 50)))
    run(make_scheduler(models[0]), free)
    held = make_request(
        "held",
        list(range(20, 50)),
        sampling_params={"ignore_eos": False, "min_new_tokens": 3},
    )
    held.stop_token_ids = frozenset(free.output_ids[:1])
    run(make_scheduler(models[0]), held)
    assert free.output_ids[0] not in held.output_ids[:3]
