"""The simulator's clock and players, by a job small enough to be worked out by hand."""

from __future__ import annotations

import pytest

from gyre.contracts.events import executions as run_events
from gyre.contracts.events import steps as step_events
from gyre.simulator import Simulation, StalledError
from gyre.simulator.bodies import variants
from gyre.simulator.speeds import Speeds
from gyre.simulator.summary import summarize
from gyre.simulator.workload import Drawn, Fixed, Lognormal, Training
from gyre.testkit.specs import job_spec

SPEEDS = Speeds(
    ready_s=1.0, to_training_s=2.0, to_rollout_s=3.0, update_s=0.5, publish_s=4.0, scoring_s=1.0
)


def two_groups_a_step(duration_s: float = 10.0) -> Simulation:
    """Two cells of four slots, B = 2 groups of N = 2, no extra dispatch, one step a burst."""
    spec = job_spec(
        cells=2,
        capacity=4,
        heldout=False,
        executions_per_group=2,
        groups_per_step=2,
        phi=0,
        mu=1,
        num_steps=2,
        rho_min=1.0,
        tau_s=5.0,
    )
    workload = Fixed(duration=lambda group, place: duration_s, micro_steps=(6.0,))
    return Simulation(spec, workload, SPEEDS, (2.0, 1.0), record=True, keep_log=True)


def test_a_step_takes_the_time_of_its_parts() -> None:
    """Executions 10, scoring 1, readiness 1, tau 5, switch 2; the core's two nodes train 6
    node-seconds in 3 s, twice, update 0.5: 25.5 s. The satellite finds the groups drawn."""
    outcome = two_groups_a_step().run()
    assert outcome.step_ended_s[0] == pytest.approx(10 + 1 + 1 + 5 + 2 + 3 + 3 + 0.5)
    assert outcome.published_s[0] == pytest.approx(outcome.step_ended_s[0] + 4)


def test_the_next_dispatch_waits_for_the_publication() -> None:
    outcome = two_groups_a_step().run()
    assert [group.dispatched_s for group in outcome.groups.values()] == pytest.approx(
        [0.0, 0.0, outcome.published_s[0], outcome.published_s[0]]
    )


def test_node_time_is_charged_to_the_cells_that_train() -> None:
    """The core is away from its switch to the end of its step: 2 + 6.5 s, twice, on two nodes."""
    outcome = two_groups_a_step().run()
    assert outcome.busy_node_s == pytest.approx(2 * 2 * 6.0)
    assert outcome.training_node_s == pytest.approx(2 * 2.0 * (2 + 3 + 3 + 0.5))


def test_roles_are_kept_for_the_plot() -> None:
    roles = [role for _, cell, role in two_groups_a_step().run().roles if cell == 0]
    assert roles == ["rollout", *["switching", "training", "switching", "rollout"] * 2]


def test_it_stops_at_the_measured_step() -> None:
    spec = two_groups_a_step().spec
    workload = Fixed(duration=lambda group, place: 10.0, micro_steps=(6.0,))
    world = Simulation(spec, workload, SPEEDS, (2.0, 1.0), until_step=1)
    outcome = world.run()
    assert len(outcome.step_ended_s) == 1
    assert outcome.end_s == outcome.step_ended_s[0]


def test_a_job_that_cannot_go_on_says_where_it_stands() -> None:
    world = two_groups_a_step()
    world.later = lambda delay, action, argument: None  # type: ignore[method-assign]
    with pytest.raises(StalledError, match=r"any more, at 0\.00 h: step 0 of 2"):
        world.run()


def test_a_variant_equals_the_validated_body() -> None:
    pattern = run_events.Started(execution="a", group="g", task="t")
    made = variants(pattern)(execution="b")
    assert made == run_events.Started(execution="b", group="g", task="t")
    assert made.model_dump_json() == '{"execution":"b","group":"g","task":"t"}'
    assert pattern.execution == "a"


def test_a_run_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def total(seed: int) -> float:
        spec = job_spec(cells=3, capacity=6, heldout=False, num_steps=4)
        lengths = Lognormal(median_h=0.1, group_sigma=0.3, individual_sigma=0.3)
        training = Training(node_hours=0.05, groups_per_step=6)
        workload = Drawn(lengths=lengths, training=training, seed=seed)
        outcome = Simulation(spec, workload, Speeds(), (1.0,) * 3).run()
        return summarize(spec, outcome, seed).total_h

    assert total(1) == total(1)
    assert total(1) != total(2)


def test_a_group_is_the_same_whatever_is_drawn_before_it() -> None:
    lengths = Lognormal(median_h=1.0, group_sigma=0.5, individual_sigma=0.5)
    training = Training(node_hours=1.0, groups_per_step=2)
    workload = Drawn(lengths=lengths, training=training, seed=3)
    alone = workload.group(7, 4)
    for number in range(7):
        workload.group(number, 4)
    assert workload.group(7, 4) == alone


def test_lengths_cluster_at_the_ceiling_and_beyond_it_only_overall() -> None:
    lengths = Lognormal(
        median_h=1.0,
        individual_sigma=1.0,
        timeout_h=2.0,
        overall_after_timeout=0.5,
        overall_timeout_h=3.0,
    )
    training = Training(node_hours=1.0, groups_per_step=1)
    work = Drawn(lengths=lengths, training=training, seed=0).group(0, 400)
    by_ending = {
        ending: {d / 3600 for d, e in zip(work.durations, work.endings, strict=True) if e == ending}
        for ending in ("harness", "overall")
    }
    assert by_ending == {"harness": {2.0}, "overall": {3.0}}
    assert max(d for d, e in zip(work.durations, work.endings, strict=True) if e == "none") < 7200


def test_training_work_may_follow_the_length() -> None:
    training = Training(
        node_hours=2.0, groups_per_step=2, length_share=0.5, reference_execution_h=2.0
    )
    assert training.micro_steps(2.0) == (3600.0,)
    assert training.micro_steps(4.0) == (5400.0,)


@pytest.mark.parametrize(("nodes", "seconds"), [(4.0, 25.0), (16.0, 12.5), (1.0, 50.0)])
def test_cells_scale_by_the_exponent_from_the_reference(nodes: float, seconds: float) -> None:
    speeds = Speeds(node_exponent=0.5, reference_nodes=4.0)
    assert speeds.micro_step_s(100.0, nodes) == pytest.approx(seconds)


def test_owners_of_a_step_are_all_its_micro_steps() -> None:
    world = two_groups_a_step()
    world.run()
    steps = [b for _, _, b in world.log or () if isinstance(b, step_events.StepCompleted)]
    assert [[owner.index for owner in step.micro_steps] for step in steps] == [[0, 1], [0, 1]]


def test_the_groups_of_one_task_share_its_factor() -> None:
    lengths = Lognormal(median_h=1.0, group_sigma=1.0)
    training = Training(node_hours=1.0, groups_per_step=2)
    workload = Drawn(lengths=lengths, training=training, seed=3, num_tasks=4)
    rounds = [[workload.group(number, 2).durations[0] for number in (n, n + 4)] for n in range(4)]
    assert [first for first, _ in rounds] == [again for _, again in rounds]
    assert len({first for first, _ in rounds}) == 4
