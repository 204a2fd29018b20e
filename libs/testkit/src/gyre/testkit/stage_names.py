"""A pipeline stage's tensors by the names that they have in the undivided model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from gyre.cell_agent.trainer.model.stages import Stage


def stage_parameters(stage: Stage) -> dict[str, Tensor]:
    """This stage's, by their names in the undivided model, which counts layers from the first
    stage's and has no output layer of its own where embeddings are tied."""
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    module = stage.model.module
    first = get_transformer_layer_offset(stage.model.config)
    tied = module.share_embeddings_and_output_weights
    return {_whole_name(name, first, tied): value for name, value in module.named_parameters()}


def stage_gradients(stage: Stage) -> dict[str, Tensor]:
    """Copies of the stage's gradient buffers, named as its parameters."""
    return {
        name: parameter.main_grad.clone()  # type: ignore[attr-defined]
        for name, parameter in stage_parameters(stage).items()
    }


def _whole_name(name: str, first_layer: int, tied: bool) -> str:
    match name.split("."):
        case ["decoder", "layers", number, *rest]:
            return ".".join(["decoder", "layers", str(int(number) + first_layer), *rest])
        case ["output_layer", "weight"] if tied:
            return "embedding.word_embeddings.weight"
    return name
