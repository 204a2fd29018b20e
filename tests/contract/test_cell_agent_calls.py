"""What the agent asks of its trainer and engine is what they offer: the simulated ones take part in
the training law, so they must not accept what the real ones would refuse."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from gyre.cell_agent.deadlines import FLOOR_BYTES_PER_S
from gyre.cell_agent.engine.base import EngineClient
from gyre.contracts.events.steps import StepStatistics
from gyre.testkit.simulated_engine import SimulatedEngine
from gyre.testkit.simulated_fabric import Fabric
from gyre.testkit.simulated_trainer import SimulatedTrainer
from gyre.testkit.specs import job_spec
from gyre.testkit.training_world import Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

ENGINE_CALLS = (
    *("abort", "num_requests", "pause", "resume", "release_memory", "resume_memory"),
    *("update_weights_from_disk", "confirm_directory", "num_pins", "num_announced"),
    *("generate", "ready"),
)

# In a process of its own: importing the real trainer patches torch for the whole process.
_PROBE = """
import inspect, json
from gyre.cell_agent.trainer.commands import NAMES, TrainerCommands
from gyre.cell_agent.trainer.batch.batch_record import BatchRecord
commands = {
    name: {
        p.name: p.default is inspect.Parameter.empty
        for p in inspect.signature(getattr(TrainerCommands, name)).parameters.values()
        if p.name != "self"
    }
    for name in NAMES
}
print(json.dumps({"commands": commands, "statistics": sorted(BatchRecord().statistics())}))
"""


@cache
def _real_trainer() -> dict[str, Any]:
    """commands: name -> {argument: whether it is required}; statistics: keys of a step's."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=110, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@cache
def _run(num_bytes: int) -> Fabric:
    """A run in which the core is lost after its first checkpoint, so that it is loaded again. It is
    asked how far a checkpoint is. num_bytes: of the model's weights."""
    with tempfile.TemporaryDirectory() as home:
        with Path(home, "model.safetensors").open("wb") as weights:
            weights.truncate(num_bytes)
        world = TrainingWorld(
            spec=job_spec(
                capacity=4,
                heldout=False,
                executions_per_group=2,
                groups_per_step=3,
                phi=1 / 3,
                num_steps=4,
                tau_s=0.0,
                sections={
                    "model": {"path": home},
                    "training": {"checkpoint": {"asynchronous": True}},
                },
            ),
            home=Path(home),
            seed=1,
            strikes=(Strike(after="stream_closed", nth=3, delay_s=0.0, victim="trainer", cell=0),),
            micro_step_s=4.0,
            execution_s=1.0,
        )
        run_virtual(world.run())
    return world.fabric


def _calls_of_a_run() -> set[tuple[str, tuple[str, ...]]]:
    """Without its start, which is none of a trainer's commands."""
    return {call for call in _run(num_bytes=0).calls if call[0] != "start"}


def test_every_call_of_an_agent_fits_the_real_trainers_command() -> None:
    calls, commands = _calls_of_a_run(), _real_trainer()["commands"]
    # For tests, and for a machine with a GPU.
    others = {"save_gradients", "checksum", "status", "memory"}
    assert {name for name, _ in calls} == set(commands) - others
    for name, arguments in calls:
        required = {argument for argument, must in commands[name].items() if must}
        assert required <= set(arguments) <= set(commands[name]), name


def test_whoever_moves_or_computes_with_the_model_has_time_by_its_size() -> None:
    num_bytes = 10 * 2**30
    small, large = _run(num_bytes=0).limits, _run(num_bytes=num_bytes).limits
    assert small.keys() == large.keys()
    more = {command: large[command] - small[command] for command in small}
    of_any_size = {"configure", "checkpoint_status"}
    assert {command for command, seconds in more.items() if not seconds} == of_any_size
    least = num_bytes / FLOOR_BYTES_PER_S
    assert [command for command in more.keys() - of_any_size if more[command] < least] == []


def test_the_simulated_trainer_takes_the_real_ones_arguments() -> None:
    for name, _ in _calls_of_a_run():
        simulated = inspect.signature(getattr(SimulatedTrainer, f"_{name}")).parameters
        assert set(simulated) - {"self"} <= set(_real_trainer()["commands"][name]), name


def test_the_simulated_engine_offers_what_the_real_client_does() -> None:
    for name in ENGINE_CALLS:
        real = inspect.signature(getattr(EngineClient, name)).parameters
        simulated = inspect.signature(getattr(SimulatedEngine, name)).parameters
        for place, parameter in enumerate(simulated.values()):
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                assert place < len(real), name
            else:
                assert parameter.name in real, name


def test_a_steps_statistics_are_those_of_the_contract() -> None:
    """The rest comes from the core's update and from the agent's clock."""
    given = set(_real_trainer()["statistics"])
    assert given | {"grad_norm", "lr", "seconds"} == set(StepStatistics.model_fields)
