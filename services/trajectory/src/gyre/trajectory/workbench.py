"""The open batch's stream packing buffer: samples in hand, cut into micro-steps.

Samples are drawn once an execution's group is claimed and forgotten when its micro-step is emitted.
Both the draw (seeded by job and execution) and the packing (a function of what was claimed and not
emitted, in that order) depend on the log alone, so a restart goes on where the last life ended.
"""

from __future__ import annotations

from gyre.adapters.logging import get_logger
from gyre.contracts.job import JobSpec
from gyre.core.admission import seeded
from gyre.core.groups import Batch, JobGroups, Trainee, trainees
from gyre.core.microstep import ExecutionInfo, MicroStep, Row, Segment
from gyre.core.packing import Bundle, PackedStep, next_step, shape_of
from gyre.core.samples import ExecutionSamples, Sample, SampleError, draw_samples
from gyre.core.tree import TreeError
from gyre.trajectory.trees import Trees

NOTHING = ExecutionSamples(samples=(), num_targets=0, num_paths_too_long=0, temperature=1.0)


class Workbench:
    """One batch's samples. Mutated by `next_micro_step` and `num_paths_too_long`."""

    def __init__(self, state: JobGroups, batch: Batch, trees: Trees) -> None:
        self.batch = batch
        self._job = state.job
        self._spec = state.required_spec
        self._trees = trees
        self._samples: dict[str, ExecutionSamples] = {}
        self._too_long: dict[str, int] = {}

    async def next_micro_step(self) -> MicroStep | None:
        """The batch's next micro-step, None when more groups should be drawn or all is out."""
        pending: dict[str, Trainee] = {}
        for trainee in trainees(self.batch):
            if trainee.execution in self.batch.emitted:
                self._samples.pop(trainee.execution, None)
            else:
                await self._draw(trainee)
                pending[trainee.execution] = trainee
        bundles = [_bundle(execution, self._samples[execution]) for execution in pending]
        admission = self._spec.admission
        shape = shape_of(admission.row_tokens, admission.tokens_per_micro_step)
        step = next_step(bundles, shape, closing=self.batch.all_drawn)
        return None if step is None else self._micro_step(step, pending)

    async def num_paths_too_long(self) -> int:
        """Leaves of the batch's trained executions that were dropped before admission."""
        for trainee in trainees(self.batch):
            if trainee.execution not in self._too_long:
                await self._draw(trainee)
        return sum(self._too_long.values())

    async def _draw(self, trainee: Trainee) -> None:
        """Admission; records that cannot be trained leave the execution without targets."""
        execution = trainee.execution
        if execution in self._samples:
            return
        try:
            tree = await self._trees.sealed(self._job, execution)
            samples = draw_samples(
                tree,
                attempt=trainee.attempt,
                row_tokens=self._spec.admission.row_tokens,
                max_trajectories=self._spec.admission.max_trajectories,
                rng=seeded(self._spec.seed, execution),
            )
        except (TreeError, SampleError) as error:
            get_logger().error("execution_quarantined", execution=execution, error=str(error))
            samples = NOTHING
        self._samples[execution] = samples
        self._too_long[execution] = samples.num_paths_too_long

    def _micro_step(self, step: PackedStep, pending: dict[str, Trainee]) -> MicroStep:
        number = {execution: place for place, execution in enumerate(step.executions)}
        return MicroStep(
            batch=self.batch.batch,
            index=self.batch.num_micro_steps,
            row_tokens=step.row_tokens,
            normalizer=normalizer(self._spec, self.batch),
            executions=tuple(
                _info(pending[execution], self._samples[execution]) for execution in step.executions
            ),
            rows=tuple(
                Row(
                    segments=tuple(
                        _segment(
                            number[placement.execution],
                            self._samples[placement.execution].samples[placement.trajectory],
                        )
                        for placement in row
                    )
                )
                for row in step.rows
            ),
        )


def normalizer(spec: JobSpec, batch: Batch) -> int:
    """B * N of eq. (6): raw executions of the batch, whatever became of them."""
    return batch.num_groups * spec.schedule.executions_per_group


def _bundle(execution: str, samples: ExecutionSamples) -> Bundle:
    lengths = tuple(len(sample.token_ids) for sample in samples.samples)
    return Bundle(execution=execution, lengths=lengths)


def _info(trainee: Trainee, samples: ExecutionSamples) -> ExecutionInfo:
    return ExecutionInfo(
        execution=trainee.execution,
        group=trainee.group,
        advantage=trainee.advantage,
        num_targets=samples.num_targets,
        temperature=samples.temperature,
    )


def _segment(execution: int, sample: Sample) -> Segment:
    return Segment(
        execution=execution,
        token_ids=tuple(sample.token_ids),
        target_positions=tuple(sample.target_positions),
        behaviour_logprobs=tuple(sample.logprobs),
        versions=tuple(sample.versions),
    )
