"""Warm start of the policy that works inside Claude Code: the quickstart's, in another dialect.

    python examples/claude-code/warmstart.py --out DIR [--seed N] [--threads N]

The tasks, the mistakes, the model and the three phases are the quickstart's. What differs is what
the policy reads and says: prompts as the installed program sends them (`capture.py`), and a shell
instead of two tools. Prompts become tokens by the proxy's own code. The directory is kept while
its manifest names the same inputs, the program's prompt among them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "quickstart"), str(HERE)]

import model  # noqa: E402
import torch  # noqa: E402
import warmstart as quickstart  # noqa: E402  the quickstart's: its directory comes first
from capture import PROMPT, fingerprint, first_request  # noqa: E402
from model import Policy, Shape, save_hf  # noqa: E402
from msgspec.structs import replace  # noqa: E402
from tasks import Task  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402
from transcripts import Example, Turn, draw_transcript  # noqa: E402

from gyre.cli.jobfile import load_job_file  # noqa: E402
from gyre.core.messages import Message  # noqa: E402
from gyre.proxy.codecs.encoding import Codec, load_codec  # noqa: E402
from gyre.proxy.requests import Request  # noqa: E402

VOCABULARY_SIZE = 832
# The program's prompt alone has 800 tokens; the quickstart's model ends at 1,024.
model.MAX_POSITIONS = 2048
NUM_TRANSCRIPTS = 3000
SILENT = "(Bash completed with no output)"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def in_shell(turn: Turn) -> Turn:
    """A turn of the quickstart's transcripts as a shell command and its output."""
    if "<tool_call>" not in turn.completion:
        return turn
    call = json.loads(turn.completion.split("\n")[1])
    arguments = call["arguments"]
    if call["name"] == "read_file":
        return Turn(completion=shell(f"cat {arguments['path']}"), tool_result=turn.tool_result)
    text = arguments["content"]
    command = f"printf '{text}' > {arguments['path']}"
    return Turn(completion=shell(command), tool_result=SILENT)


def shell(command: str) -> str:
    arguments = {"name": "Bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Makes prompts out of the program's own. request: its first, for PROMPT."""

    request: Request

    @property
    def system(self) -> Message:
        return self.request.messages[0]

    def inputs(self, task: Task, rng: random.Random) -> list[Message]:
        """What comes after the system text, on a random day."""
        day = f"{rng.randint(2024, 2029)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"

        def filled(message: Message) -> Message:
            text = _DATE.sub(day, message.content).replace(PROMPT, task.prompt)
            return replace(message, content=text, blocks=())

        return [filled(message) for message in self.request.messages[1:]]


def corpus(prompts: Prompts, rng: random.Random) -> Iterator[str]:
    """Texts of transcripts, the program's own words now and then."""
    for index in range(NUM_TRANSCRIPTS):
        task, turns = draw_transcript(rng, good_fraction=0.5)
        if index % 10 == 0:
            yield prompts.system.content
            yield json.dumps(list(map(dict, prompts.request.tools)), ensure_ascii=False)
            yield from (message.content for message in prompts.inputs(task, rng))
        yield task.prompt
        for turn in map(in_shell, turns):
            yield turn.completion.replace("<tool_call>", "").replace("</tool_call>", "")
            yield turn.tool_result or ""


def encode(
    codec: Codec, tokenizer: Any, head: Sequence[int], inputs: Sequence[Message], turns: list[Turn]
) -> Example:
    """Tokens as the proxy records them."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [*head, *(token for part in codec.inputs(inputs) for token in part)]
    is_target = [False] * len(ids)
    for turn in map(in_shell, turns):
        said = codec.generation()[:0]
        ids += codec.generation()
        said.extend([*tokenizer.encode(turn.completion, add_special_tokens=False), end])
        is_target += [False] * (len(ids) - len(is_target)) + [True] * len(said)
        ids += said
        if turn.tool_result is not None:
            answer = Message(role="tool", content=turn.tool_result.rstrip("\n"), tool_call_id="c")
            for part in codec.inputs_after_turn(said, [answer]):
                ids += part
    is_target += [False] * (len(ids) - len(is_target))
    return Example(ids=ids, is_target=is_target)


def num_shared(examples: Sequence[Example]) -> int:
    """Tokens that all examples begin with."""
    columns = zip(*(example.ids for example in examples), strict=False)
    return next(index for index, column in enumerate(columns) if len(set(column)) > 1)


def warm_start(seed: int, prompts: Prompts, out: Path) -> Policy:
    """Trains tokenizer and policy from nothing and writes them; the same seed, the same policy."""
    tokenizer = train_tokenizer(corpus(prompts, random.Random(0)), VOCABULARY_SIZE)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    codec = load_codec(str(out), "qwen3")
    head = codec.head(prompts.request.tools, prompts.system)
    informative = quickstart.informative_tokens(tokenizer)
    rng = random.Random(seed)
    policy = Policy(Shape(vocab_size=len(tokenizer)))
    policy.initialise(torch.Generator().manual_seed(seed))
    for phase in quickstart.PHASES:
        examples = []
        for _ in range(phase.num_examples):
            task, turns = draw_transcript(rng, phase.good_fraction)
            inputs = prompts.inputs(task, rng)
            if not phase.with_preamble:
                inputs = [Message(role="user", content=task.prompt)]
            opening = head if phase.with_preamble else ()
            examples.append(encode(codec, tokenizer, opening, inputs, turns))
        print(f"{phase.name}: {max(len(e.ids) for e in examples)} tokens the longest", flush=True)
        quickstart.run_phase(policy, phase, examples, num_shared(examples), informative, rng)
    save_hf(policy, tokenizer, out)
    return policy


def manifest(seed: int, prompts: Prompts) -> dict[str, Any]:
    """The quickstart's, with what is added here."""
    own = {name: (HERE / name).read_bytes() for name in ("warmstart.py", "capture.py", "job.yaml")}
    own["prompt"] = _DATE.sub("", fingerprint(prompts.request)).encode()
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in own.items()}
    return {"quickstart": quickstart.manifest(seed), "own": digests}


def main() -> None:
    args = quickstart.arguments("Make the policy that works in Claude Code.")
    job = load_job_file(HERE / "job.yaml")
    environments = Path(os.environ.get("GYRE_HARNESS_ENVS", Path(sys.prefix) / "gyre-env.json"))
    tokens = job["model"]["context_tokens"]
    prompts = Prompts(request=first_request(environments, job["harness"]["settings"], tokens))
    quickstart.make_once(
        args.out,
        manifest(args.seed, prompts),
        lambda: warm_start(args.seed, prompts, args.out),
    )


if __name__ == "__main__":
    main()
