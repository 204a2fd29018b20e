"""What is trained of a tree by settings of a test's own, without a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from gyre.core.samples import Choice, ExecutionSamples, choose, samples_of

P = ParamSpec("P")


def _sampled(choice_of: Callable[P, Choice]) -> Callable[P, ExecutionSamples]:
    return lambda *args, **kwargs: samples_of(choice_of(*args, **kwargs))


draw_samples = _sampled(choose)
"""`samples_of` what `choose` gives."""
