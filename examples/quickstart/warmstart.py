"""Warm start of the quickstart's policy: tokenizer, model, a short supervised run.

    python examples/quickstart/warmstart.py --out DIR [--seed N] [--threads N]

Writes a Hugging Face directory (Qwen3ForCausalLM) plus manifest.json. When the manifest there
already names the same inputs (these sources, the library versions, the seed), nothing is done.
Three phases, each a fixed number of steps, so that every machine gets the same policy up to
rounding: clean transcripts without the tools' preamble teach the skill, whole clean ones that it
holds up behind the preamble, whole ones of mixed quality the mistakes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from model import Policy, Shape, save_hf
from renderers import Qwen3Renderer
from tasks import FILES, WORDS
from tokenizer import VOCABULARY_SIZE, corpus, train_tokenizer
from torch import Tensor
from torch.nn import functional
from transcripts import DRAFT, PHRASES, TOOLS, Example, iterate_examples

SOURCES = ("tasks.py", "transcripts.py", "tokenizer.py", "model.py", "warmstart.py", "tools.py")
LIBRARIES = ("torch", "tokenizers", "transformers", "renderers")
MANIFEST = "manifest.json"
# Weight of an ordinary target in the loss; an informative one (a file's name, a word, a digit)
# weighs this plus the phase's own amount. Uniform weights learnt the format and random values.
ORDINARY_WEIGHT = 0.1
BATCHES_PER_SORT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One supervised run over random batches."""

    name: str
    num_steps: int
    batch_size: int
    num_examples: int
    good_fraction: float
    learning_rate: float
    informative_weight: float
    with_preamble: bool


PHASES = (
    Phase(
        name="skill",
        num_steps=300,
        batch_size=16,
        num_examples=3000,
        good_fraction=1.0,
        learning_rate=1.5e-3,
        informative_weight=1.0,
        with_preamble=False,
    ),
    Phase(
        name="format",
        num_steps=220,
        batch_size=16,
        num_examples=2500,
        good_fraction=1.0,
        learning_rate=8e-4,
        informative_weight=1.0,
        with_preamble=True,
    ),
    Phase(
        name="mistakes",
        num_steps=100,
        batch_size=16,
        num_examples=1600,
        good_fraction=0.35,
        learning_rate=4e-4,
        informative_weight=0.3,
        with_preamble=True,
    ),
)


def shared_prefix(renderer: Qwen3Renderer) -> list[int]:
    """The tokens with which every prompt of the quickstart begins: the tools' preamble."""
    prompts = [
        renderer.render_ids([{"role": "user", "content": text}], tools=TOOLS)
        for text in ("Write", "Copy")
    ]
    length = next(i for i, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)
    return list(prompts[0][:length])


def batch(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Token ids and targets' mask, (rows, longest) each, padded on the right."""
    longest = max(len(example.ids) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    mask = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        mask[row, : len(example.ids)] = torch.tensor(example.is_target)
    return ids, mask


def informative_tokens(tokenizer: Any) -> Tensor:
    """1.0 for the first token of whatever may fill a file's name or its content, else 0.0.

    Good and bad fillings weigh the same, or the policy would not learn how often each occurs.
    """
    texts = [name.split(".")[0] for name in (*FILES, DRAFT)] + list(WORDS)
    texts += [str(digit) for digit in range(10)] + list(PHRASES)
    weight = torch.zeros(len(tokenizer))
    for text in texts:
        weight[tokenizer.encode(text, add_special_tokens=False)[0]] = 1.0
    return weight


def batches(
    examples: Sequence[Example], batch_size: int, num_batches: int, rng: random.Random
) -> Iterator[list[Example]]:
    """Random batches of similar lengths, which wastes little on padding."""
    for start in range(0, num_batches, BATCHES_PER_SORT):
        drawn = rng.sample(examples, batch_size * BATCHES_PER_SORT)
        drawn.sort(key=lambda example: len(example.ids))
        order = rng.sample(range(BATCHES_PER_SORT), BATCHES_PER_SORT)
        for index in order[: num_batches - start]:
            yield drawn[index * batch_size : (index + 1) * batch_size]


def run_phase(
    policy: Policy,
    phase: Phase,
    examples: Sequence[Example],
    num_shared: int,
    informative: Tensor,
    rng: random.Random,
) -> None:
    """Train the policy in place; prints the loss now and then."""
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    drawn = batches(examples, phase.batch_size, phase.num_steps, rng)
    for step, chosen in enumerate(drawn):
        rate = phase.learning_rate * min(1.0, (step + 1) / 20) * (1 - 0.95 * step / phase.num_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, mask = batch(chosen)
        selected = mask[:, num_shared + 1 :]
        expected = ids[:, num_shared + 1 :][selected]
        weight = ORDINARY_WEIGHT + phase.informative_weight * informative[expected]
        logits = policy(ids[:, :-1], num_shared, selected)
        loss = (
            functional.cross_entropy(logits, expected, reduction="none") * weight
        ).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == phase.num_steps:
            seconds = time.monotonic() - started
            print(
                f"{phase.name} {step + 1}/{phase.num_steps} loss {loss:.4f} {seconds:.0f} s",
                flush=True,
            )


def warm_start(seed: int, phases: Sequence[Phase] = PHASES) -> tuple[Policy, Any]:
    """Train tokenizer and policy from nothing; the same seed gives the same policy."""
    tokenizer = train_tokenizer(corpus(random.Random(0)), VOCABULARY_SIZE)
    renderer = Qwen3Renderer(tokenizer)
    prefix = shared_prefix(renderer)
    informative = informative_tokens(tokenizer)
    rng = random.Random(seed)
    policy = Policy(Shape(vocab_size=len(tokenizer)))
    policy.initialise(torch.Generator().manual_seed(seed))
    for phase in phases:
        examples = list(
            iterate_examples(renderer, tokenizer, rng, phase.good_fraction, phase.num_examples)
        )
        num_shared = len(prefix)
        if not phase.with_preamble:
            # Keep the opening of the user's turn; positions shift, which rotary embeddings allow.
            cut = len(prefix) - opening_length(tokenizer, prefix)
            examples = [Example(ids=e.ids[cut:], is_target=e.is_target[cut:]) for e in examples]
            num_shared = len(prefix) - cut
        run_phase(policy, phase, examples, num_shared, informative, rng)
    return policy, tokenizer


def opening_length(tokenizer: Any, prefix: Sequence[int]) -> int:
    """Tokens of the prefix from the last `<|im_start|>` on."""
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    return list(reversed(prefix)).index(start) + 1


def manifest(seed: int, phases: Sequence[Phase] = PHASES) -> dict[str, Any]:
    """What the result depends on; equal manifests mean equal policies."""
    here = Path(__file__).parent
    return {
        "seed": seed,
        "phases": [asdict(phase) for phase in phases],
        "sources": {
            name: hashlib.sha256((here / name).read_bytes()).hexdigest() for name in SOURCES
        },
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def is_fresh(folder: Path, expected: dict[str, Any]) -> bool:
    """Whether the folder already holds the policy of this manifest."""
    path = folder / MANIFEST
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == expected


def write_manifest(folder: Path, value: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def arguments(description: str) -> argparse.Namespace:
    """out, seed and threads, as the command line has them; torch gets its threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return args


def make_once(folder: Path, expected: dict[str, Any], make: Callable[[], Policy]) -> None:
    """`make` writes the policy into the folder, unless the one of this manifest is there."""
    if is_fresh(folder, expected):
        print(f"{folder} is up to date")
        return
    started = time.monotonic()
    (folder / MANIFEST).unlink(missing_ok=True)
    policy = make()
    write_manifest(folder, expected)  # last: a directory with a manifest is whole
    num_parameters = sum(parameter.numel() for parameter in policy.parameters())
    print(f"{num_parameters} parameters in {folder}, {time.monotonic() - started:.0f} s")


def main() -> None:
    args = arguments("Make the quickstart's warm-started policy.")

    def make() -> Policy:
        policy, tokenizer = warm_start(args.seed)
        save_hf(policy, tokenizer, args.out)
        return policy

    make_once(args.out, manifest(args.seed), make)


if __name__ == "__main__":
    main()
