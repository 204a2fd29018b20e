"""A cell that cannot run a job is not given to it, neither when it starts nor when it is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import AgentOnline
from gyre.contracts.events.scheduling import CellLost, JobStarted, JobSubmitted
from gyre.contracts.subjects import CLUSTER
from gyre.core.agent_fit import agent_misfit
from gyre.core.scheduling.cluster import (
    ClusterState,
    evolve_cluster,
    next_cell_join,
    next_job_start,
)
from gyre.core.scheduling.snapshot import dump_cluster, load_cluster
from gyre.testkit.facts import AT_0
from gyre.testkit.specs import job_spec

JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a job asks for. able, unable: what agents say whose cells have it, and have it not.
    field: what the refusal names."""

    field: str
    sections: dict[str, Any]
    experts: bool = False
    able: dict[str, Any]
    unable: dict[str, Any]

    def submitted(self, cells: int) -> JobSubmitted:
        spec = job_spec(cells=cells, phi=0.0, sections=self.sections)
        return JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=(), experts=self.experts)

    def agent(self, cell: int, *, able: bool) -> AgentOnline:
        said = {"engines": ("local", "sglang")} | (self.able if able else self.unable)
        return AgentOnline(cell=cell, incarnation="i", host="h", pid=1, **said)


ON_GPU, SGLANG = {"has_gpu": True}, {"engine": {"kind": "sglang"}}
WANTS = [
    Want(field="engine.kind", sections=SGLANG, able={}, unable={"engines": ("local",)}),
    Want(
        field="engine.tensor",
        sections={"engine": {"kind": "sglang", "tensor": 2}},
        able=ON_GPU,
        unable={},
    ),
    Want(field="model.path", sections=SGLANG, experts=True, able=ON_GPU, unable={}),
    Want(
        field="weights.transport",
        sections={"weights": {"transport": "nccl"}},
        able={"trains_on_gpu": True},
        unable={},
    ),
    Want(
        field="training.layout.context",
        sections={"training": {"layout": {"context": 2}}},
        able={},
        unable={"trains_on_gpu": True},
    ),
    Want(
        field="training.layout",
        sections={"training": {"layout": {"data": 4}}},
        able={"node_ranks": (2, 2)},
        unable={"node_ranks": (3,)},
    ),
]
each_want = pytest.mark.parametrize("want", WANTS, ids=lambda want: want.field)


class Told:
    """What the scheduler makes of agents and a job; a restart from its snapshot changes nothing."""

    def __init__(self) -> None:
        self._cluster = ClusterState()

    def tell(self, *bodies: Body) -> ClusterState:
        for body in bodies:
            job = CLUSTER if isinstance(body, AgentOnline) else JOB
            evolve_cluster(self._cluster, self._cluster.sequence + 1, job, body)
        self._cluster = load_cluster(dump_cluster(self._cluster))
        return self._cluster


@each_want
def test_what_a_cell_lacks_is_one_line_that_names_the_cell(want: Want) -> None:
    spec = want.submitted(1).spec
    assert agent_misfit(spec, want.agent(7, able=True), experts=want.experts) is None
    misfit = agent_misfit(spec, want.agent(7, able=False), experts=want.experts)
    assert misfit is not None
    assert misfit.field == want.field
    assert "cell 7" in misfit.message
    assert "\n" not in misfit.message


@each_want
def test_a_job_starts_on_cells_that_can_run_it(want: Want) -> None:
    told = Told()
    told.tell(want.agent(0, able=False), want.agent(1, able=True), want.submitted(2))
    assert next_job_start(told.tell(), 0.0) is None
    started = next_job_start(told.tell(want.agent(2, able=True)), 0.0)
    assert started is not None
    assert started[1].cells == (1, 2)


@each_want
def test_a_job_short_of_cells_is_joined_by_one_that_can_run_it(want: Want) -> None:
    told = Told()
    told.tell(*(want.agent(cell, able=True) for cell in range(3)), want.submitted(3))
    told.tell(JobStarted(**AT_0, cells=(0, 1, 2), lineage=1), CellLost(**AT_0, cell=1, reason="r"))
    assert next_cell_join(told.tell(want.agent(3, able=False)), 0.0) is None
    # Its agent is started anew, with what it lacked.
    joining = next_cell_join(told.tell(want.agent(3, able=True)), 0.0)
    assert joining is not None
    assert joining[1].cell == 3
