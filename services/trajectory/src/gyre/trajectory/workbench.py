"""The open batch's stream packing buffer: samples in hand, cut into micro-steps.

Samples are drawn once an execution's group is claimed and forgotten when its micro-step is emitted.
Both the draw (seeded by job and execution) and the packing (a function of what was claimed and not
emitted, in that order) depend on the log alone, so a restart goes on where the last life ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gyre.contracts.job import JobSpec
from gyre.core.groups import Batch, JobGroups, Trainee, trainees
from gyre.core.microstep import ExecutionInfo, MicroStep, Row
from gyre.core.packing import Bundle, PackedStep, next_step, shape_of
from gyre.core.records import RecordError
from gyre.core.samples import ExecutionSamples, SampleError, chosen_of, samples_of
from gyre.trajectory.trees import Trees

NOTHING = ExecutionSamples(
    blocks=(), num_targets=0, num_paths=0, num_paths_too_long=0, temperature=1.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What admission came to. num_targets: those that it chose. num_paths_too_long: leaves that
    were dropped before."""

    num_targets: int
    num_paths_too_long: int


class Workbench:
    """One batch's samples. Mutated by `next_micro_step` and `chosen` alone."""

    def __init__(self, state: JobGroups, batch: Batch, trees: Trees) -> None:
        self.batch = batch
        self._job = state.job
        self._spec = state.required_spec
        admission = self._spec.admission
        self._shape = shape_of(admission.row_tokens, admission.tokens_per_micro_step)
        self._trees = trees
        self._samples: dict[str, ExecutionSamples] = {}

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
        step = next_step(bundles, self._shape, closing=self.batch.all_drawn)
        return None if step is None else self._micro_step(step, pending)

    def chosen_for(self, micro_step: MicroStep) -> Chosen:
        """Of the executions of the one that `next_micro_step` gave last."""
        return _chosen(self._samples[info.execution] for info in micro_step.executions)

    async def chosen(self) -> Chosen:
        """Of all the batch's trained executions: what was said of those that are emitted, whatever
        became of their records since, and of those with nothing to emit."""
        others = [one for one in trainees(self.batch) if one.execution not in self.batch.emitted]
        for trainee in others:
            await self._draw(trainee)
        left = _chosen(self._samples[trainee.execution] for trainee in others)
        return Chosen(
            num_targets=self.batch.num_admitted_targets + left.num_targets,
            num_paths_too_long=self.batch.num_paths_too_long + left.num_paths_too_long,
        )

    async def _draw(self, trainee: Trainee) -> None:
        """Admission; records that cannot be trained leave the execution without targets."""
        execution = trainee.execution
        if execution in self._samples:
            return
        try:
            tree = await self._trees.sealed(self._job, execution)
            samples = samples_of(chosen_of(tree, execution, trainee.attempt, self._spec))
        except (RecordError, SampleError) as error:
            self._trees.condemn(execution, str(error))
            samples = NOTHING
        self._samples[execution] = samples

    def _micro_step(self, step: PackedStep, pending: dict[str, Trainee]) -> MicroStep:
        number = {execution: place for place, execution in enumerate(step.executions)}
        return MicroStep(
            batch=self.batch.batch,
            index=self.batch.num_micro_steps,
            row_tokens=step.row_tokens,
            window_rows=self._shape.num_rows,
            normalizer=normalizer(self._spec, self.batch),
            executions=tuple(
                _info(pending[execution], self._samples[execution]) for execution in step.executions
            ),
            rows=tuple(
                Row(
                    blocks=tuple(
                        self._samples[placement.execution]
                        .blocks[placement.block]
                        .of_execution(number[placement.execution])
                        for placement in row
                    )
                )
                for row in step.rows
            ),
        )


def normalizer(spec: JobSpec, batch: Batch) -> int:
    """B * N of eq. (6): raw executions of the batch, whatever became of them."""
    return batch.num_groups * spec.schedule.executions_per_group


def _chosen(samples: Iterable[ExecutionSamples]) -> Chosen:
    drawn = list(samples)
    return Chosen(
        num_targets=sum(one.num_targets for one in drawn),
        num_paths_too_long=sum(one.num_paths_too_long for one in drawn),
    )


def _bundle(execution: str, samples: ExecutionSamples) -> Bundle:
    lengths = tuple(len(block.token_ids) for block in samples.blocks)
    return Bundle(execution=execution, lengths=lengths)


def _info(trainee: Trainee, samples: ExecutionSamples) -> ExecutionInfo:
    return ExecutionInfo(
        execution=trainee.execution,
        group=trainee.group,
        advantage=trainee.advantage,
        num_targets=samples.num_targets,
        temperature=samples.temperature,
    )
