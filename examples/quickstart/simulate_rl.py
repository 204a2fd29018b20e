"""Reinforcement learning on the quickstart's tasks with a simulated harness, in one process.

    python examples/quickstart/simulate_rl.py --model DIR [--seed N] [--lr 3e-4] [--steps 12]

Settles the job's settings in about a minute: same tasks, same tokens, the paper's objective
(equations 5 and 6) and its boundary dispatch, without services. The harness is imitated: each
completion is parsed, the tools of tools.py run in a scratch folder, their answers are bridged.
Prints the held-out mean reward before and after, from the same 96 tasks at temperature 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from model import Policy, load_hf, save_hf
from renderers import Qwen3Renderer, ToolCallParseStatus
from tasks import Task, draw_tasks
from torch import Tensor
from torch.nn import functional
from transcripts import TOOLS, Example, tool_functions
from transformers import PreTrainedTokenizerFast
from warmstart import batch, shared_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The job's settings that the simulation honours; names as in job.yaml."""

    num_samples: int = 8
    batch_groups: int = 6
    phi: float = 0.5
    mu: int = 2
    num_steps: int = 12
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    warmup_steps: int = 3
    grad_clip: float = 1.0
    clip_low: float = 0.995
    clip_high: float = 1.005
    token_weight_cap: float = 5.0
    loss_cap: float = 100.0
    max_new_tokens: int = 64
    max_calls: int = 8
    context_tokens: int = 768


@dataclass(slots=True, kw_only=True)
class Execution:
    """One simulated harness run; grows turn by turn."""

    task: Task
    ids: list[int]
    is_target: list[bool]
    logprobs: list[float] = field(default_factory=list)
    num_calls: int = 0
    num_malformed: int = 0
    reward: float = 0.0

    def example(self) -> Example:
        return Example(ids=self.ids, is_target=self.is_target)


class Environment:
    """Runs executions of the policy in lockstep, as many at a time as tasks are given."""

    def __init__(self, policy: Policy, tokenizer: Any, settings: Settings) -> None:
        self.policy = policy
        self.settings = settings
        self.renderer = Qwen3Renderer(tokenizer)
        self.prefix = shared_prefix(self.renderer)
        self.stop_ids = set(self.renderer.get_stop_token_ids())

    def run(self, tasks: Sequence[Task], generator: torch.Generator) -> list[Execution]:
        """One execution a task, finished and scored."""
        shared = self.policy.prefill_shared(self.prefix)
        executions = [self._start(task) for task in tasks]
        with tempfile.TemporaryDirectory() as scratch:
            folders = [Path(scratch) / str(index) for index in range(len(tasks))]
            for folder, task in zip(folders, tasks, strict=True):
                folder.mkdir()
                for name, text in task.files.items():
                    (folder / name).write_text(text, encoding="utf-8")
            live = list(range(len(tasks)))
            while live:
                prompts = [executions[i].ids for i in live]
                outputs = self._generate(prompts, shared, generator)
                live = [
                    i
                    for i, (completion, logprobs) in zip(live, outputs, strict=True)
                    if self._take(executions[i], completion, logprobs, folders[i])
                ]
            for execution, folder in zip(executions, folders, strict=True):
                execution.reward = execution.task.reward(read_workspace(folder))
        return executions

    def _start(self, task: Task) -> Execution:
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        ids = list(self.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
        return Execution(task=task, ids=ids, is_target=[False] * len(ids))

    def _take(
        self, execution: Execution, completion: list[int], logprobs: list[float], folder: Path
    ) -> bool:
        """Record a completion and answer its tool calls; whether the harness calls again."""
        before = execution.ids
        parsed = self.renderer.parse_response(completion, tools=TOOLS, prompt_ids=before)
        execution.ids = before + completion
        execution.is_target += [True] * len(completion)
        execution.logprobs += logprobs
        execution.num_calls += 1
        calls = [
            tool_call
            for tool_call in parsed.tool_calls
            if tool_call.status == ToolCallParseStatus.OK
            and isinstance(tool_call.name, str)
            and isinstance(tool_call.arguments, dict)
        ]
        execution.num_malformed += len(parsed.tool_calls) > len(calls)
        answers: list[Any] = [
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": answer(call.name, call.arguments, folder),
            }
            for call in calls
        ]
        if not answers or execution.num_calls == self.settings.max_calls:
            return False
        bridged = self.renderer.bridge_to_next_turn(before, completion, answers, tools=TOOLS)
        if bridged is None or len(bridged.token_ids) > self.settings.context_tokens:
            return False
        execution.ids = list(bridged.token_ids)
        execution.is_target += [False] * (len(execution.ids) - len(execution.is_target))
        return True

    def _generate(
        self, prompts: Sequence[list[int]], shared: Any, generator: torch.Generator
    ) -> list[tuple[list[int], list[float]]]:
        """Completions with their logprobs, sampled at temperature 1."""
        room = self.settings.max_new_tokens
        cache, logits = self.policy.prefill(prompts, shared, room)
        positions = torch.tensor([len(prompt) for prompt in prompts])
        outputs: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        live = set(range(len(prompts)))
        for step in range(room):
            logprobs = logits.log_softmax(-1)
            chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
            values = logprobs.gather(1, chosen)[:, 0].tolist()
            tokens = chosen[:, 0].tolist()
            for row in sorted(live):
                outputs[row][0].append(tokens[row])
                outputs[row][1].append(values[row])
                if tokens[row] in self.stop_ids:
                    live.discard(row)
            if not live or step + 1 == room:
                break
            logits = self.policy.decode(chosen[:, 0], positions, cache)
            positions = positions + 1
        return outputs


def answer(name: str, arguments: dict[str, Any], folder: Path) -> str:
    """What the harness sends back for a tool call made in the folder."""
    function = tool_functions().get(name)
    if function is None:
        return f'Error: tool "{name}" does not exist'
    home = Path.cwd()
    os.chdir(folder)
    try:
        return str(function(**arguments))
    except (TypeError, ValueError, OSError) as error:
        return f"Error: {error}"
    finally:
        os.chdir(home)


def read_workspace(folder: Path) -> dict[str, str]:
    """Texts of the files at the top of the folder, by name."""
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in folder.iterdir()
        if path.is_file()
    }


def advantages(rewards: Sequence[float], num_samples: int) -> list[float]:
    """(r - mean) / std within each consecutive group; zeros where all rewards are equal."""
    result: list[float] = []
    for start in range(0, len(rewards), num_samples):
        group = rewards[start : start + num_samples]
        mean, std = statistics.fmean(group), statistics.pstdev(group)
        result += [(reward - mean) / std if std > 0 else 0.0 for reward in group]
    return result


def train_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    executions: Sequence[Execution],
    num_shared: int,
    settings: Settings,
) -> dict[str, float]:
    """One update on whole groups by equations (5) and (6); returns clip fraction and norm."""
    advantage = advantages([execution.reward for execution in executions], settings.num_samples)
    kept = [i for i, value in enumerate(advantage) if value != 0.0]
    if not kept:
        return {"clip_fraction": 0.0, "grad_norm": 0.0}
    ids, mask = batch([executions[i].example() for i in kept])
    selected = mask[:, num_shared + 1 :]
    row = torch.arange(len(kept))[:, None].expand_as(selected)[selected]
    num_targets = selected.sum(1)
    old = torch.tensor([value for i in kept for value in executions[i].logprobs])
    logits = policy(ids[:, :-1], num_shared, selected)
    expected = ids[:, num_shared + 1 :][selected]
    logprob = -functional.cross_entropy(logits, expected, reduction="none")
    a = torch.tensor([advantage[i] for i in kept])
    keep, weight = execution_mask(logprob.detach(), old, row, num_targets, a, settings)
    token_loss = (-(keep * a)[row] * weight * logprob).clamp(max=settings.loss_cap)
    loss = (token_loss / num_targets[row]).sum() / len(executions)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.grad_clip)
    optimizer.step()
    return {"clip_fraction": 1 - float(keep.mean()), "grad_norm": float(norm)}


def execution_mask(
    logprob: Tensor, old: Tensor, row: Tensor, num_targets: Tensor, a: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """m_i of each execution and the capped weight of each token, both without gradient."""
    difference = logprob - old
    s = (torch.zeros(len(a)).index_add(0, row, difference) / num_targets).exp()
    clipped = ((a > 0) & (s > settings.clip_high)) | ((a < 0) & (s < settings.clip_low))
    return (~clipped).float(), difference.exp().clamp(max=settings.token_weight_cap)


def mean_and_error(executions: Sequence[Execution]) -> tuple[float, float]:
    """Mean reward and its standard error."""
    rewards = [execution.reward for execution in executions]
    return statistics.fmean(rewards), statistics.stdev(rewards) / len(rewards) ** 0.5


def simulate(
    model: Path, seed: int, settings: Settings, verbose: bool = True, save: Path | None = None
) -> dict[str, Any]:
    """A whole run under boundary dispatch; returns its figures, saves the trained policy."""
    policy = load_hf(model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    environment = Environment(policy, tokenizer, settings)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(
        policy.parameters(), lr=settings.learning_rate, betas=settings.betas, eps=settings.eps
    )
    num_groups = settings.num_steps * settings.batch_groups
    tasks = deque(draw_tasks(seed, "train", num_groups))
    heldout = draw_tasks(seed, "heldout", 96)
    before = mean_and_error(environment.run(heldout, generator))
    ready: deque[tuple[int, list[Execution]]] = deque()

    def dispatch(version: int, count: int) -> None:
        chosen = [tasks.popleft() for _ in range(min(count, len(tasks)))]
        executions = environment.run(
            [task for task in chosen for _ in range(settings.num_samples)], generator
        )
        for start in range(0, len(executions), settings.num_samples):
            ready.append((version, executions[start : start + settings.num_samples]))

    dispatch(0, round((settings.phi + settings.mu) * settings.batch_groups))
    curve, stale, clipped = [], [], []
    for step in range(settings.num_steps):
        taken = [ready.popleft() for _ in range(settings.batch_groups)]
        executions = [execution for _, group in taken for execution in group]
        stale += [step - version for version, _ in taken]
        for parameters in optimizer.param_groups:
            parameters["lr"] = settings.learning_rate * min(1, (step + 1) / settings.warmup_steps)
        figures = train_step(policy, optimizer, executions, len(environment.prefix), settings)
        curve.append(round(mean_and_error(executions)[0], 2))
        clipped.append(figures["clip_fraction"])
        if verbose:
            print(f"step {step + 1} reward {curve[-1]} {figures}", flush=True)
        if (step + 1) % settings.mu == 0:
            dispatch(step + 1, settings.mu * settings.batch_groups)
    if save is not None:
        save_hf(policy, tokenizer, save)
    final = environment.run(heldout, generator)
    after = mean_and_error(final)
    families: dict[str, float] = {}
    for family in ("sum", "larger", "copy"):
        of_family = [e.reward for e in final if e.task.family == family]
        families[family] = round(statistics.fmean(of_family), 2)
    return {
        "before": tuple(round(value, 3) for value in before),
        "after": tuple(round(value, 3) for value in after),
        "after_by_family": families,
        "curve": curve,
        "mean_staleness": statistics.fmean(stale),
        "clip_fraction": [round(value, 2) for value in clipped],
        "malformed_calls": sum(execution.num_malformed for execution in final),
        "calls": statistics.fmean(execution.num_calls for execution in final),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the quickstart's training.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=Settings().learning_rate)
    parser.add_argument("--steps", type=int, default=Settings().num_steps)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--clip", type=float, nargs=2, default=(0.995, 1.005))
    args = parser.parse_args()
    settings = Settings(
        learning_rate=args.lr, num_steps=args.steps, clip_low=args.clip[0], clip_high=args.clip[1]
    )
    started = time.monotonic()
    figures = simulate(args.model, args.seed, settings, save=args.save)
    print(json.dumps(asdict(settings)))
    print(json.dumps({**figures, "seconds": round(time.monotonic() - started)}))


if __name__ == "__main__":
    main()
