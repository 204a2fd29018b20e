"""What a job's cells serve with, and how weights reach them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gyre.contracts.section import Positive, Section

SGLANG_RESERVED_TOKENS = 7
"""Of its context length SGLang keeps the last two tokens to itself, and takes no input that leaves
less than five beside them: its model needs positions for as many more than calls are promised."""


class EngineSection(Section):
    """kind: "local" is Gyre's own engine for small models on CPUs. tensor: ranks of one engine.
    memory_fraction: of the device, for weights and cache; SGLang's own choice when left out."""

    kind: Literal["local", "sglang"] = "local"
    tensor: Positive = 1
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _the_local_engine_is_one_rank_on_a_cpu(self) -> EngineSection:
        if self.kind != "local":
            return self
        if self.tensor > 1:
            raise ValueError("tensor: the local engine has one rank; leave it out, or set kind")
        if self.memory_fraction is not None:
            raise ValueError("memory_fraction: of SGLang alone; leave it out, or set kind: sglang")
        return self


class WeightsSection(Section):
    """transport: how a satellite pulls the core's exposed weights, `nccl` from GPU to GPU.
    publication: how engines get a new version: from the checkpoint on a disk that all share, or
    sent by the core's agent. in_flight: what becomes of calls that run when a version arrives:
    `hold` lets them end on the old one, `in_place` goes on under the new one with the cache of the
    old, `retract` under the new one with their prefix computed again. allow_public: weights may be
    served on an address that is not private."""

    transport: Literal["tcp", "mooncake", "nccl"] = "tcp"
    publication: Literal["disk", "tcp"] = "disk"
    in_flight: Literal["hold", "in_place", "retract"] = "retract"
    allow_public: bool = False
