"""Small jobs under each policy, with streaming and without, lived through once."""

from __future__ import annotations

from functools import cache
from typing import Any

from gyre.contracts.envelope import Body
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec

_POLICIES: dict[str, dict[str, Any]] = {
    "gyre": {"num_steps": 5},
    "gyre+": {"policy": "gyre+", "num_steps": 8, "mu": 3},
    "gyre+ whose core stays": {
        "policy": "gyre+",
        "num_steps": 5,
        "executions_per_group": 2,
        "executions_started": 3,
        "pool_count": 1,
        "pool_capacity": 60,
    },
    "async": {"policy": "async", "training_cells": 2, "num_steps": 3},
    "colocate": {"policy": "colocate", "phi": 0.0, "num_steps": 3},
    "colocate, coarse": {
        "policy": "colocate",
        "num_steps": 5,
        "pool_count": 1,
        "pool_capacity": 120,
    },
}
_RESERVE = {"evaluation": {"heldout_every": 1, "heldout_capacity": 3}}
JOBS: dict[str, dict[str, Any]] = {
    f"{name}{', no streaming' * (not streaming)}": schedule | {"streaming": streaming}
    for name, schedule in _POLICIES.items()
    for streaming in (True, False)
} | {
    f"{name}, reserved": _POLICIES[name] | {"sections": _RESERVE}
    for name in ("gyre", "gyre+", "async", "colocate, coarse")
}


def world_of(name: str) -> World:
    """A new one: not lived through yet."""
    return World(
        job_spec(**JOBS[name]),
        lambda number: 1.0 + 3.0 * (number * 7919 % 13) / 13,
        Timings(micro_step=0.4),
    )


@cache
def facts_of(name: str) -> tuple[tuple[int, Body], ...]:
    """(sequence, fact) of the whole job."""
    world = world_of(name)
    world.run()
    return tuple((sequence, body) for sequence, _, body in world.log)


def next_fact(name: str, sequence: int, kind: type[Body]) -> Any:
    """The next fact of `kind` behind `sequence`, None when there is none. Of dispatches: the
    training ones."""
    return next(
        (
            body
            for number, body in facts_of(name)
            if number > sequence
            and isinstance(body, kind)
            and getattr(body, "kind", "training") == "training"
        ),
        None,
    )
