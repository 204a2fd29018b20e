"""Routes and executions: what the proxy folds."""

from __future__ import annotations

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import EngineLost, RoleChanged, WeightsLoaded
from gyre.contracts.events.executions import AttemptFailed, AttemptStarted, Terminated
from gyre.contracts.events.scheduling import (
    CellLost,
    Move,
    StartOrder,
    StartOrdered,
    TransitionStarted,
)
from gyre.core.routing import (
    Routes,
    UnreadableWeightVersion,
    parse_weight_version,
    weight_version_name,
)
from gyre.proxy.executions import Effects, Registry

JOB = "job"


def ordered(execution: str, cell: int) -> StartOrdered:
    order = StartOrder(execution=execution, group="g", task="t", cell=cell, seed=5)
    return StartOrdered(based_on=0, now=0.0, orders=(order,))


def rollout(cell: int, version: int = 0) -> RoleChanged:
    return RoleChanged(
        cell=cell,
        role="rollout",
        version=version,
        lineage=0,
        engine_url=f"http://cell{cell}/",
        duration_s=0.0,
    )


def transition(cell: int, *moves: Move) -> TransitionStarted:
    return TransitionStarted(
        based_on=0, now=0.0, cell=cell, to="training", moves=moves, waterlevel=0, capacity_after=0
    )


def folded(*facts: Body) -> Routes:
    routes = Routes()
    for sequence, fact in enumerate(facts, start=1):
        routes.evolve(JOB, sequence, fact)
    return routes


def test_a_route_follows_orders_transitions_and_losses() -> None:
    routes = folded(ordered("e", 0), rollout(0), rollout(1), rollout(2))
    engine = routes.engine(JOB, "e")
    assert engine is not None
    assert (engine.cell, engine.url) == (0, "http://cell0")

    changed = routes.evolve(JOB, 5, transition(0, Move(execution="e", source=0, destination=1)))
    assert changed.executions == ("e",)
    assert changed.cells == (0,)
    assert routes.cell("e") == 1

    move = Move(execution="e", source=1, destination=2)
    routes.evolve(JOB, 6, CellLost(based_on=0, now=0.0, cell=1, moves=(move,), reason="r"))
    engine = routes.engine(JOB, "e")
    assert engine is not None
    assert engine.cell == 2


def test_a_cell_takes_calls_only_after_it_said_so() -> None:
    assert folded(ordered("e", 0)).engine(JOB, "e") is None
    assert folded(ordered("e", 0), rollout(0), transition(0)).engine(JOB, "e") is None
    lost = EngineLost(cell=0, error="x")
    assert folded(ordered("e", 0), rollout(0), lost).engine(JOB, "e") is None
    back = folded(ordered("e", 0), rollout(0), lost, rollout(0, version=3)).engine(JOB, "e")
    assert back is not None
    assert (back.version, back.epoch) == (3, 4)
    assert folded(ordered("e", 0), rollout(0)).engine("other", "e") is None


def test_a_publication_changes_the_version_and_not_the_engine() -> None:
    loaded = WeightsLoaded(cell=0, version=4, lineage=1, checksum="c")
    engine = folded(ordered("e", 0), rollout(0), loaded).engine(JOB, "e")
    assert engine is not None
    assert (engine.lineage, engine.version, engine.epoch) == (1, 4, 2)


def test_a_weight_version_has_one_name() -> None:
    assert parse_weight_version(weight_version_name(2, 17)) == (2, 17)
    for name in ("default", "1", "1.", ".1", "a.b", "1.2.3", "-1.0"):
        with pytest.raises(UnreadableWeightVersion):
            parse_weight_version(name)


def test_only_the_latest_running_attempt_is_valid() -> None:
    registry = Registry()

    def say(fact: Body) -> Effects:
        return registry.evolve(JOB, 1, fact)

    say(ordered("e", 0))
    assert registry.executions["e"].seed == 5
    assert not registry.is_valid(JOB, "e", 1)
    assert registry.may_become_valid(JOB, "e", 1)
    say(AttemptStarted(execution="e", attempt=1, key_id="k", workspace="w"))
    assert registry.is_valid(JOB, "e", 1)
    assert not registry.is_valid("other", "e", 1)
    assert not registry.may_become_valid("other", "e", 2)
    assert say(AttemptFailed(execution="e", attempt=1, error="x")).revoked == ("e",)
    assert not registry.is_valid(JOB, "e", 1)
    assert not registry.may_become_valid(JOB, "e", 1)
    say(AttemptStarted(execution="e", attempt=2, key_id="k", workspace="w"))
    assert registry.is_valid(JOB, "e", 2)
    ended = say(
        Terminated(
            execution="e", attempt=2, reason="completed", exit_code=0, signal=None, workspace=None,
            duration_s=1.0,
        )
    )  # fmt: skip
    assert ended.terminated == ("e",)
    assert not registry.is_valid(JOB, "e", 2)
    registry.forget("e")
    assert not registry.may_become_valid(JOB, "e", 3)
