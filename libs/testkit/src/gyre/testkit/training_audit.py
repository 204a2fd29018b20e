"""What a training run must have kept, recomputed from its log and from what the trainers did."""

from __future__ import annotations

from collections import Counter

from gyre.adapters.journal import Fact
from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.cell.orders import BEFORE_ALL
from gyre.core.routing import parse_weight_version
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.testkit.simulated_fabric import INITIAL, Label
from gyre.testkit.training_world import JOB, TrainingWorld


def audit(world: TrainingWorld) -> None:
    """Raises AssertionError, naming what was broken."""
    assert world.fabric.violations == []
    finished = [fact.body for fact in world.log if isinstance(fact.body, sched.JobFinished)]
    assert [body.status for body in finished] == ["succeeded"], finished
    _each_cell_stops_once(world)
    facts = facts_that_count(world)
    truth = weights_by_version(world, facts)
    _reductions_hold_each_micro_step_once(world, facts)
    _joiners_held_the_exact_weights(world, facts, truth)
    _members_are_a_prefix(facts)
    _versions_count_the_steps(world, facts)
    _groups_are_consumed_once(world, facts)
    _published_is_durable(facts, truth)
    _a_number_names_one_set_of_weights(world, truth)
    _decisions_follow_from_the_log(world)


def _each_cell_stops_once(world: TrainingWorld) -> None:
    """For each time that the job took it, but for one whose agent never came back."""
    taken: Counter[int] = Counter()
    offline: Counter[int] = Counter()
    for fact in world.log:
        match fact.body:
            case sched.JobStarted() as started:
                taken.update(started.cells)
            case sched.CellJoined() as joined:
                taken[joined.cell] += 1
            case cell_events.RoleChanged(role="offline") as stopped:
                offline[stopped.cell] += 1
            case _:
                pass
    for cell, times in taken.items():
        assert offline[cell] == times or (world.cells[cell].buried and offline[cell] < times)


def facts_that_count(world: TrainingWorld) -> list[Fact]:
    """Without what a cell said of itself, or of the job as its core, when it was no longer its."""
    state = JobState(job=JOB)
    counted = []
    for fact in world.log:
        if fact.job == JOB:
            if not _void(state, fact.body):
                counted.append(fact)
            evolve(state, fact.sequence, fact.body)
    return counted


def _void(state: JobState, body: Body) -> bool:
    match body:
        case step_events.StepCompleted(batch=batch):
            return state.batch is None or state.batch.batch != batch
        case cell_events.CheckpointSaved() | cell_events.WeightsPublished():
            return state.core_lost or body.lineage != state.lineage
        case cell_events.RoleChanged() | cell_events.WeightsLoaded():
            return state.present(body.cell) is None
        case _:
            return False


def weights_by_version(world: TrainingWorld, facts: list[Fact]) -> dict[Label, str]:
    """What (lineage, version) means, from the completed steps and the restores."""
    truth: dict[Label, str] = {(1, 0): INITIAL}
    for fact in facts:
        match fact.body:
            case step_events.StepCompleted() as step:
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


def _reductions_hold_each_micro_step_once(world: TrainingWorld, facts: list[Fact]) -> None:
    emitted: dict[str, int] = {}
    for fact in facts:
        match fact.body:
            case group_events.StreamClosed() as closed:
                emitted[closed.batch] = closed.num_micro_steps
            case step_events.StepCompleted() as step:
                parts = world.fabric.reductions[step.batch].parts
                done = {(index, cell) for cell, indices in parts for index in indices}
                owners = {(owner.index, owner.cell) for owner in step.micro_steps}
                assert done == owners, step
                assert sum(len(indices) for _, indices in parts) == len(done), step
                assert {index for index, _ in owners} == set(range(emitted[step.batch])), step
                assert tuple(cell for cell, _ in sorted(parts)) == tuple(sorted(step.members))
            case _:
                pass


def _joiners_held_the_exact_weights(
    world: TrainingWorld, facts: list[Fact], truth: dict[Label, str]
) -> None:
    opened = {
        fact.body.batch: (fact.body.lineage, fact.body.version)
        for fact in facts
        if isinstance(fact.body, sched.BatchOpened)
    }
    for cell, batch, content in world.fabric.begun:
        assert content == truth[opened[batch]], (cell, batch)


def _members_are_a_prefix(facts: list[Fact]) -> None:
    worlds: dict[int, tuple[int, ...]] = {}
    for fact in facts:
        match fact.body:
            case sched.WorldFormed() as formed:
                assert formed.epoch == len(worlds) + 1
                worlds[formed.epoch] = formed.cells
            case sched.JoinWindowClosed() as closed:
                assert closed.members == worlds[closed.epoch][: len(closed.members)]
            case _:
                pass


def _versions_count_the_steps(world: TrainingWorld, facts: list[Fact]) -> None:
    version, lineage = 0, 1
    for fact in facts:
        match fact.body:
            case step_events.StepCompleted() as step:
                assert (step.lineage, step.version) == (lineage, version + 1)
                version = step.version
            case sched.Restored() as back:
                assert back.lineage == lineage + 1
                assert back.version <= version
                version, lineage = back.version, back.lineage
            case _:
                pass
    assert version == world.spec.schedule.num_steps


def _groups_are_consumed_once(world: TrainingWorld, facts: list[Fact]) -> None:
    """Per surviving step B groups, no group in two of them, none forgotten but those that were
    dropped, and those in none."""
    claimed: dict[str, list[str]] = {}
    done: dict[int, list[str]] = {}
    dispatched: list[str] = []
    open_batch: str | None = None
    size = world.spec.schedule.groups_per_step
    for fact in facts:
        match fact.body:
            case sched.Dispatched(kind="training") as queued:
                dispatched += [plan.group for plan in queued.groups]
            case sched.GroupDropped() as dropped:
                dispatched.remove(dropped.group)
            case sched.BatchOpened() as opened:
                open_batch = opened.batch
            case group_events.GroupClaimed() as claim if claim.batch == open_batch:
                claimed.setdefault(claim.batch, []).append(claim.group)
            case step_events.StepCompleted() as step:
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


def _published_is_durable(facts: list[Fact], truth: dict[Label, str]) -> None:
    """Every engine that served when the checkpoint was saved, and still does, has confirmed it."""
    saved: dict[Label, str] = {}
    serving: dict[int, Label] = {}
    settled: set[int] = set()
    for fact in facts:
        match fact.body:
            case cell_events.RoleChanged(role="rollout") as role:
                serving[role.cell] = (role.lineage, role.version)
            case cell_events.RoleChanged() | cell_events.EngineLost() | sched.TransitionStarted():
                serving.pop(fact.body.cell, None)
                settled.discard(fact.body.cell)
            case sched.CellLost() | sched.CellReleased():
                serving.pop(fact.body.cell, None)
                settled.discard(fact.body.cell)
            case sched.Restored() as back if (
                (label := max(saved, default=(0, 0)))[1] == back.version > 0
            ):
                # Under its new name it is confirmed anew.
                saved[back.lineage, back.version] = saved[label]
                settled = set(serving)
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


def _a_number_names_one_set_of_weights(world: TrainingWorld, truth: dict[Label, str]) -> None:
    """Of what engines held, in whatever lineage: tokens are told apart by their version alone."""
    by_number: dict[int, str] = {}
    for name, content in world.fabric.served:
        label = parse_weight_version(name)
        if label == BEFORE_ALL:
            # Before it is sent what it is to serve.
            assert content == INITIAL
            continue
        assert content == truth[label], name
        assert by_number.setdefault(label[1], content) == content, name


def _decisions_follow_from_the_log(world: TrainingWorld) -> None:
    """Whatever fell in between: the log up to `based_on` and `now` give each decision again. At the
    end nobody holds a slot."""
    by_base: dict[int, list[Decision]] = {}
    for fact in world.log:
        if isinstance(fact.body, Decision) and not isinstance(
            fact.body, sched.JobStarted | sched.CellJoined
        ):
            by_base.setdefault(fact.body.based_on, []).append(fact.body)
    state = JobState(job=JOB)
    for fact in world.log:
        if fact.job == JOB:
            evolve(state, fact.sequence, fact.body)
            for decision in by_base.get(fact.sequence, ()):
                assert next_decision(state, decision.now) == decision
    assert not any(cell.executions for cell in state.cells.values())
    assert not state.queue
