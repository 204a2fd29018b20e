"""Whether a model can be shared out over a cell's ranks as a job's layout says, and there.

The trainer asks before it builds its part, the scheduler before it takes the job: one rule, so that
what is accepted can be trained.
"""

from __future__ import annotations

from gyre.contracts.training_job import LayoutSection
from gyre.core.policy_config import PolicyConfig


class LayoutMisfit(ValueError):
    """A part of the model cannot be shared out evenly, or not on these devices, or Megatron does
    not. setting: of `training.layout`, the one to change."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def check_fit(policy: PolicyConfig, layout: LayoutSection) -> None:
    """Raises LayoutMisfit. Tokens are shared out however many there are, so context and data have
    nothing to divide."""
    experts = policy.experts
    if experts is None and layout.expert > 1:
        raise LayoutMisfit(
            "expert", f"is {layout.expert}, and the model has no experts to share out; set it to 1"
        )
    if experts is not None and layout.tensor > 1 and not layout.sequence_parallel:
        raise LayoutMisfit(
            "tensor",
            f"is {layout.tensor}, which shares a model of experts out only with "
            "sequence_parallel: true; set that, or tensor to 1",
        )
    rows, rows_over = policy.ffn_size, layout.tensor
    if experts is not None:
        rows, rows_over = experts.ffn_size, layout.expert_tensor
    for size, parts, what, setting in (
        (policy.num_heads, layout.tensor, "attention heads", "tensor"),
        (policy.num_groups, layout.tensor, "key-value heads", "tensor"),
        (rows, rows_over, "feed-forward rows", "tensor"),
        (policy.vocab_size, layout.tensor, "vocabulary entries", "tensor"),
        (policy.num_layers, layout.pipeline, "layers", "pipeline"),
        (experts.count if experts else 1, layout.expert, "experts", "expert"),
    ):
        if size % parts:
            raise LayoutMisfit(
                setting,
                f"is {parts}, which does not divide the model's {size} {what}; "
                "choose a size that does",
            )


def check_device(layout: LayoutSection, *, on_gpu: bool) -> None:
    """on_gpu: where the ranks compute. Raises LayoutMisfit."""
    if layout.context > 1 and on_gpu:
        raise LayoutMisfit(
            "context",
            f"is {layout.context}, and on GPUs attention is not shared out over context ranks; "
            "set it to 1",
        )
