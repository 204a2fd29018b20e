"""Whether a cell can run a job, by what its agent said of itself.

The scheduler asks it of every cell that is online before it takes a job, and again of each cell
that it gives to one: agents come, go and come back different while a job waits or runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.contracts.events.cells import AgentOnline
from gyre.contracts.job import JobSpec
from gyre.core.cell_plan import LayoutDoesNotFit, spread_ranks
from gyre.core.layout_fit import LayoutMisfit, check_device


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMisfit:
    """field: dotted path in the job file. message: a line, with the cell and the mend."""

    field: str
    message: str


def agent_misfit(spec: JobSpec, agent: AgentOnline, *, experts: bool) -> AgentMisfit | None:
    """The first reason why the agent's cell cannot run the job, None if it can. experts: the job's
    model is a mixture of them."""
    return next(_misfits(spec, agent, experts), None)


def _misfits(spec: JobSpec, agent: AgentOnline, experts: bool) -> Iterator[AgentMisfit]:
    kind, cell = spec.engine.kind, f"cell {agent.cell}"
    if kind not in agent.engines:
        yield AgentMisfit(
            field="engine.kind",
            message=f"{cell} has no {kind}; run `gyre engines install {kind}` on its machine and "
            "start its agent again",
        )
    if spec.engine.tensor > 1 and not agent.has_gpu:
        yield AgentMisfit(
            field="engine.tensor",
            message=f"is {spec.engine.tensor}, but {cell} has no GPU, where an engine has one "
            "rank; set it to 1",
        )
    if experts and not agent.has_gpu:
        yield AgentMisfit(
            field="model.path",
            message=f"is a model of experts, but {cell} serves on a CPU, where it cannot be "
            "confirmed that an engine holds its weights; take a model without experts, or cells "
            "with GPUs",
        )
    if spec.weights.transport == "nccl" and not agent.trains_on_gpu:
        yield AgentMisfit(
            field="weights.transport",
            message=f"nccl: {cell} trains on a CPU; use tcp or mooncake",
        )
    layout = spec.training.layout
    try:
        check_device(layout, on_gpu=agent.trains_on_gpu)
        spread_ranks(layout, agent.node_ranks)
    except LayoutMisfit as error:
        yield AgentMisfit(field=f"training.layout.{error.setting}", message=f"{cell}: {error}")
    except LayoutDoesNotFit as error:
        yield AgentMisfit(field="training.layout", message=f"{cell}: {error}")
