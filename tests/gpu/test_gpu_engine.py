"""Plain SGLang on a GPU, as an agent drives it: a publication, a role switch, the memory saver."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from gyre.cell_agent import engine_turn
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.phases import now
from gyre.cell_agent.trainer.model.weights_io import read_weights

PROMPT = range(20, 60)
GREEDY = {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True}
NUM_SWITCHES = 3
_calls = itertools.count()


async def said(engine: EngineClient) -> tuple[tuple[int, ...], str]:
    """Greedy tokens, and the version that they are said to come from."""
    answer = await engine.generate(
        input_ids=PROMPT, sampling_params=GREEDY, rid=f"call-{next(_calls)}"
    )
    return answer.output_ids, answer.weight_version


async def load(engine: EngineClient, model: Path, version: str) -> None:
    await engine.update_weights_from_disk(str(model), weight_version=version)
    await engine.confirm_directory(str(model), checksum(read_weights(model)))


def used_bytes() -> int:
    """Of the device, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


async def test_a_publication_changes_what_is_said_and_its_name_and_another_takes_it_back(
    engine: EngineProcess, models: tuple[Path, Path]
) -> None:
    heard = [await said(engine.client)]
    for number, model in enumerate((models[1], models[0]), start=1):
        await engine.client.pause("retract")
        await load(engine.client, model, f"1.{number}")
        await engine.client.resume()
        heard.append(await said(engine.client))
    assert [version for _, version in heard] == ["1.0", "1.1", "1.2"]
    assert heard[1][0] != heard[0][0] == heard[2][0]


async def test_switches_free_the_device_for_the_trainer_and_change_nothing_that_is_said(
    engine: EngineProcess, models: tuple[Path, Path], device: torch.device
) -> None:
    """The memory saver gives weights and cache back, and the process lives."""
    client = engine.client
    before, pid, serving = await said(client), engine.pid, used_bytes()
    for number in range(1, NUM_SWITCHES + 1):
        await engine_turn.stop_admitting(client, now())
        await engine_turn.release(client)
        assert used_bytes() < 0.5 * serving
        assert await engine_turn.take_back(client)
        await load(client, models[0], f"1.{number}")
        await engine_turn.warm(client)
        assert await said(client) == (before[0], f"1.{number}")
        assert used_bytes() <= 1.05 * serving
    assert engine.pid == pid
