"""The state of every random generator that a rank draws from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gyre.cell_agent.trainer.megatron.megatron_core import get_cuda_rng_tracker

_MEGATRON = "megatron/"


def random_state() -> dict[str, Tensor]:
    """Copies, uint8, by generator: torch's own, the device's, Megatron's by their names."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    for name, state in get_cuda_rng_tracker().get_states().items():
        states[_MEGATRON + name] = state.clone()
    return states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    """What `random_state` gave. A device's state is left out where there is no such device."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    get_cuda_rng_tracker().set_states(
        {
            name.removeprefix(_MEGATRON): state.clone()
            for name, state in states.items()
            if name.startswith(_MEGATRON)
        }
    )
