"""What a training run must have kept, recomputed from its log and from what the trainers did."""

from __future__ import annotations

from gyre.contracts.envelope import Decision
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.testkit.simulated_trainer import INITIAL, Label
from gyre.testkit.training_world import JOB, TrainingWorld


def audit(world: TrainingWorld) -> None:
    """Raises AssertionError, naming what was broken."""
    assert world.fabric.violations == []
    finished = [fact.body for fact in world.log if isinstance(fact.body, sched.JobFinished)]
    assert [body.status for body in finished] == ["succeeded"], finished
    offline = [
        fact.body.cell
        for fact in world.log
        if isinstance(fact.body, cell_events.RoleChanged) and fact.body.role == "offline"
    ]
    assert sorted(offline) == list(range(world.spec.cells.count)), "each cell stops once"
    truth = weights_by_version(world)
    _reductions_hold_each_micro_step_once(world)
    _joiners_held_the_exact_weights(world, truth)
    _members_are_a_prefix(world)
    _versions_count_the_steps(world)
    _groups_are_consumed_once(world)
    _published_is_durable(world, truth)
    _decisions_follow_from_the_log(world)


def weights_by_version(world: TrainingWorld) -> dict[Label, str]:
    """What (lineage, version) means, from the completed steps and the restores."""
    truth: dict[Label, str] = {(1, 0): INITIAL}
    for fact in world.log:
        match fact.body:
            case cell_events.StepCompleted() as step:
                update = world.fabric.reductions[step.batch]
                assert update.label == (step.lineage, step.version)
                assert update.before == truth[step.lineage, step.version - 1]
                truth[update.label] = update.after
            case sched.Restored() as back:
                durable = world.fabric.checkpoints.get(back.checkpoint)
                truth[back.lineage, back.version] = durable[1] if durable else INITIAL
            case _:
                pass
    return truth


def _reductions_hold_each_micro_step_once(world: TrainingWorld) -> None:
    emitted: dict[str, int] = {}
    for fact in world.log:
        match fact.body:
            case group_events.StreamClosed() as closed:
                emitted[closed.batch] = closed.num_micro_steps
            case cell_events.StepCompleted() as step:
                parts = world.fabric.reductions[step.batch].parts
                done = {(index, cell) for cell, indices in parts for index in indices}
                owners = {(owner.index, owner.cell) for owner in step.micro_steps}
                assert done == owners, step
                assert sum(len(indices) for _, indices in parts) == len(done), step
                assert {index for index, _ in owners} == set(range(emitted[step.batch])), step
                assert tuple(cell for cell, _ in sorted(parts)) == tuple(sorted(step.members))
            case _:
                pass


def _joiners_held_the_exact_weights(world: TrainingWorld, truth: dict[Label, str]) -> None:
    opened = {
        fact.body.batch: (fact.body.lineage, fact.body.version)
        for fact in world.log
        if isinstance(fact.body, sched.BatchOpened)
    }
    for cell, batch, content in world.fabric.begun:
        assert content == truth[opened[batch]], (cell, batch)


def _members_are_a_prefix(world: TrainingWorld) -> None:
    worlds: dict[int, tuple[int, ...]] = {}
    for fact in world.log:
        match fact.body:
            case sched.WorldFormed() as formed:
                assert formed.epoch == len(worlds) + 1
                worlds[formed.epoch] = formed.cells
            case sched.JoinWindowClosed() as closed:
                assert closed.members == worlds[closed.epoch][: len(closed.members)]
            case _:
                pass


def _versions_count_the_steps(world: TrainingWorld) -> None:
    version, lineage = 0, 1
    for fact in world.log:
        match fact.body:
            case cell_events.StepCompleted() as step:
                assert (step.lineage, step.version) == (lineage, version + 1)
                version = step.version
            case sched.Restored() as back:
                assert back.lineage == lineage + 1
                assert back.version <= version
                version, lineage = back.version, back.lineage
            case _:
                pass
    assert version == world.spec.schedule.num_steps


def _groups_are_consumed_once(world: TrainingWorld) -> None:
    """Per surviving step B groups, no group in two of them, none forgotten."""
    claimed: dict[str, list[str]] = {}
    done: dict[int, list[str]] = {}
    dispatched: list[str] = []
    open_batch: str | None = None
    size = world.spec.schedule.groups_per_step
    for fact in world.log:
        match fact.body:
            case sched.Dispatched(kind="training") as queued:
                dispatched += [plan.group for plan in queued.groups]
            case sched.BatchOpened() as opened:
                open_batch = opened.batch
            case group_events.GroupClaimed() as claim if claim.batch == open_batch:
                claimed.setdefault(claim.batch, []).append(claim.group)
            case cell_events.StepCompleted() as step:
                done[step.version] = claimed[step.batch]
                open_batch = None
            case sched.Restored() as back:
                done = {number: groups for number, groups in done.items() if number <= back.version}
                open_batch = None
            case _:
                pass
    assert all(len(groups) == size for groups in done.values()), done
    consumed = [group for groups in done.values() for group in groups]
    assert sorted(consumed) == sorted(dispatched)


def _published_is_durable(world: TrainingWorld, truth: dict[Label, str]) -> None:
    """Every engine that served when the checkpoint was saved, and still does, has confirmed it."""
    saved: dict[Label, str] = {}
    serving: dict[int, Label] = {}
    settled: set[int] = set()
    for fact in world.log:
        match fact.body:
            case cell_events.RoleChanged(role="rollout") as role:
                serving[role.cell] = (role.lineage, role.version)
            case cell_events.RoleChanged() | cell_events.EngineLost() | sched.TransitionStarted():
                serving.pop(fact.body.cell, None)
                settled.discard(fact.body.cell)
            case cell_events.WeightsLoaded() as loaded if loaded.cell in serving:
                serving[loaded.cell] = (loaded.lineage, loaded.version)
            case cell_events.CheckpointSaved() as checkpoint:
                label = (checkpoint.lineage, checkpoint.version)
                assert truth[label] == checkpoint.checksum
                saved[label] = checkpoint.checksum
                settled = set(serving)
            case cell_events.WeightsPublished() as published:
                label = (published.lineage, published.version)
                assert label in saved
                assert all(serving[cell] == label for cell in settled), (published, serving)
            case _:
                pass


def _decisions_follow_from_the_log(world: TrainingWorld) -> None:
    """Whatever fell in between: the log up to `based_on` and `now` give each decision again. At the
    end nobody holds a slot."""
    by_base: dict[int, list[Decision]] = {}
    for fact in world.log:
        if isinstance(fact.body, Decision) and not isinstance(fact.body, sched.JobStarted):
            by_base.setdefault(fact.body.based_on, []).append(fact.body)
    state = JobState(job=JOB)
    for fact in world.log:
        if fact.job == JOB:
            evolve(state, fact.sequence, fact.body)
            for decision in by_base.get(fact.sequence, ()):
                assert next_decision(state, decision.now) == decision
    assert not any(cell.executions for cell in state.cells.values())
    assert not state.queue
