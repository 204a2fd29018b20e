"""The quickstart's policy: what is exported is what was trained, and it decodes as it scores."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from renderers import Qwen3Renderer
from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
MODULES = ("tasks", "transcripts", "tokenizer", "model", "warmstart", "simulate_rl")


@pytest.fixture(scope="module")
def quickstart() -> Any:
    """The example's modules, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})


@pytest.fixture(scope="module")
def trained(quickstart: Any) -> tuple[Any, Any]:
    """A policy after a few steps of each phase, and its tokenizer."""
    warmstart = quickstart.warmstart
    phases = [
        replace(phase, num_steps=3, batch_size=4, num_examples=40) for phase in warmstart.PHASES
    ]
    return warmstart.warm_start(3, phases)


@pytest.fixture(scope="module")
def exported(quickstart: Any, trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a model")
    quickstart.model.save_hf(*trained, folder)
    return folder


def examples(quickstart: Any, tokenizer: Any, count: int) -> list[Any]:
    renderer = Qwen3Renderer(tokenizer)
    return list(
        quickstart.transcripts.iterate_examples(renderer, tokenizer, random.Random(1), 0.5, count)
    )


def test_transformers_gives_the_same_logits(quickstart: Any, trained: Any, exported: Path) -> None:
    policy, tokenizer = trained
    ids, mask = quickstart.warmstart.batch(examples(quickstart, tokenizer, 4))
    prefix = len(quickstart.warmstart.shared_prefix(Qwen3Renderer(tokenizer)))
    reference = AutoModelForCausalLM.from_pretrained(exported)
    with torch.no_grad():
        expected = reference(ids).logits[:, prefix:][mask[:, prefix:]]
        actual = policy(ids, prefix, mask[:, prefix:])
    assert reference.config.model_type == "qwen3"
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_the_exported_directory_reads_back(quickstart: Any, trained: Any, exported: Path) -> None:
    policy, tokenizer = trained
    again = quickstart.model.load_hf(exported)
    for name, value in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    loaded = AutoTokenizer.from_pretrained(exported)
    text = "<|im_start|>user\nWrite the sum of 3 and 4 into answer.txt<|im_end|>\n"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(
        text, add_special_tokens=False
    )
    assert len(loaded) == quickstart.tokenizer.VOCABULARY_SIZE
    assert loaded.decode(loaded.encode(text)) == text


def test_decoding_scores_like_a_forward_pass(quickstart: Any, trained: Any, exported: Path) -> None:
    policy, tokenizer = trained
    settings = quickstart.simulate_rl.Settings(max_new_tokens=12, max_calls=2)
    environment = quickstart.simulate_rl.Environment(policy, tokenizer, settings)
    tasks = quickstart.tasks.draw_tasks(0, "train", 4)
    executions = environment.run(tasks, torch.Generator().manual_seed(1))
    for execution in executions:
        ids = torch.tensor([execution.ids])
        selected = torch.tensor([execution.is_target])[:, len(environment.prefix) + 1 :]
        logits = policy(ids[:, :-1], len(environment.prefix), selected)
        chosen = ids[:, len(environment.prefix) + 1 :][selected]
        logprobs = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        torch.testing.assert_close(
            logprobs.detach(), torch.tensor(execution.logprobs), atol=1e-4, rtol=1e-4
        )


def test_words_names_and_digits_are_single_tokens(quickstart: Any, trained: Any) -> None:
    _, tokenizer = trained
    texts = [*quickstart.tasks.WORDS, *(name.split(".")[0] for name in quickstart.tasks.FILES)]
    lengths = {t: len(tokenizer.encode(t, add_special_tokens=False)) for t in [*texts, "7"]}
    assert set(lengths.values()) == {1}


def test_targets_are_what_the_model_says(quickstart: Any, trained: Any) -> None:
    _, tokenizer = trained
    renderer = Qwen3Renderer(tokenizer)
    task, turns = quickstart.transcripts.draw_transcript(random.Random(5), 1.0)
    example = quickstart.transcripts.encode_transcript(renderer, tokenizer, task, turns)
    said = [token for token, target in zip(example.ids, example.is_target, strict=True) if target]
    assert tokenizer.decode(said) == "".join(f"{turn.completion}<|im_end|>" for turn in turns)


def test_equal_manifests_skip_the_warm_start(quickstart: Any, exported: Path) -> None:
    warmstart = quickstart.warmstart
    assert not warmstart.is_fresh(exported, warmstart.manifest(3))
    warmstart.write_manifest(exported, warmstart.manifest(3))
    assert warmstart.is_fresh(exported, warmstart.manifest(3))
    warmstart.make_once(exported, warmstart.manifest(3), pytest.fail)
    assert not warmstart.is_fresh(exported, warmstart.manifest(4))


def test_advantages_are_zero_where_a_group_agrees(quickstart: Any) -> None:
    rewards = [1.0, 1.0, 1.0, 0.0, 0.5, 0.5]
    actual = quickstart.simulate_rl.advantages(rewards, 3)
    assert actual[:3] == [0.0, 0.0, 0.0]
    assert actual[3] == pytest.approx(-1.4142, abs=1e-4)
    assert sum(actual[3:]) == pytest.approx(0.0)
