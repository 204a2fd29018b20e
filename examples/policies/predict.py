"""What the simulator says the comparison's job takes: the live decider in virtual time, executions
and micro-steps as long as the tasks' turns and the emulated speeds make them.

The same for every policy: tokens of a turn, and what the machine itself adds to a call, an
execution, a score, a role switch, a step and a publication, with little else running.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from gyre.contracts.job import JobSpec
from gyre.core.packing import Bundle, PackedStep, pack_all, shape_of
from gyre.simulator import Simulation
from gyre.simulator.speeds import Speeds
from gyre.simulator.workload import Ending, GroupWork

# The tiny model ends a turn at each token with this probability; most turns reach max_new_tokens.
STOP_PER_TOKEN = 0.0042
# The chat template's tokens and the user's, in a path: once, and with each turn.
PROMPT_TOKENS = 4
TEMPLATE_TOKENS_PER_TURN = 15.3
CALL_S = 0.04
# Starting and ending the agent program.
EXECUTION_S = 0.5
SPEEDS = Speeds(
    start_s=0.05,
    scoring_s=0.5,
    ready_s=0.01,
    to_training_s=0.05,
    to_rollout_s=0.1,
    pull_s=0.02,
    update_s=0.1,
    publish_s=0.1,
)


# A run's lengths are drawn; the prediction is the mean over so many draws.
NUM_DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsWorkload:
    """Group n samples task n mod their number; all its executions take the task's turns, and each
    turn's length is drawn."""

    spec: JobSpec
    turns: Sequence[int]
    seed: int = 0

    @property
    def num_tasks(self) -> int:
        return len(self.turns)

    def group(self, number: int, size: int) -> GroupWork:
        speeds = self.spec.cells.emulation(0)
        if speeds is None or not (speeds.decode_tokens_per_s and speeds.training_tokens_per_s):
            raise ValueError("cells.emulate: the prediction needs both speeds")
        source = Random(self.seed * 1_000_003 + number)
        turns = self.turns[number % len(self.turns)]
        sampled = [self._sampled(source, turns) for _ in range(size)]
        # Token 0 comes with the prefill, token k at the first tick at or after k / rate.
        decoded = [(tokens - 0.5 * turns) / speeds.decode_tokens_per_s for tokens in sampled]
        paths = [
            round(PROMPT_TOKENS + turns * TEMPLATE_TOKENS_PER_TURN) + tokens for tokens in sampled
        ]
        return GroupWork(
            durations=tuple(EXECUTION_S + turns * CALL_S + each for each in decoded),
            endings=tuple[Ending, ...](["none"] * size),
            micro_steps=tuple(
                step.num_tokens / speeds.training_tokens_per_s for step in self._packed(paths)
            ),
        )

    def _packed(self, paths: Sequence[int]) -> Iterator[PackedStep]:
        """One group's micro-steps; what little waits for the next group's is not modelled."""
        admission = self.spec.admission
        bundles = [Bundle(execution=str(k), lengths=(path,)) for k, path in enumerate(paths)]
        return pack_all(bundles, shape_of(admission.row_tokens, admission.tokens_per_micro_step))

    def _sampled(self, source: Random, turns: int) -> int:
        """Tokens that an execution samples in all its turns."""
        most = self.spec.rollout.max_new_tokens
        log_go_on = math.log(1 - STOP_PER_TOKEN)
        lengths = (1 + int(math.log(1 - source.random()) / log_go_on) for _ in range(turns))
        return sum(min(most, length) for length in lengths)


def predicted_total_s(spec: JobSpec, turns: Sequence[int], num_draws: int = NUM_DRAWS) -> float:
    """From the first dispatch to the last publication, seconds."""
    nodes = (1.0,) * spec.cells.num_cells
    draws = (TurnsWorkload(spec=spec, turns=turns, seed=seed) for seed in range(num_draws))
    return fmean(Simulation(spec, each, SPEEDS, nodes).run().published_s[-1] for each in draws)
