"""When a run's calls are a reason for a warning."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gyre.contracts.section import Positive, Section

Share = Annotated[float, Field(ge=0, le=1)]


class AlarmsSection(Section):
    """Warnings of `gyre forks` and `gyre report`; a share of 1 turns its alarm off.

    unexplained_forks: share of calls that fork without an explanation above which something is
    wrong: a client that changes its history in a way the matcher does not know does so in most
    calls, while one that drops or edits a turn now and then stays far below.
    malformed_calls: share of the calls that call tools in which a call could not be read; a small
    policy slips now and then, another family's parser reads nothing.
    min_calls: with fewer calls, of all or of those that call tools, a few are above any share.
    executions_without_tool_calls: so many in a row that were offered tools and used none: the
    family's parser does not read what this model writes, or the model has never learnt to call."""

    unexplained_forks: Share = 0.02
    malformed_calls: Share = 0.5
    min_calls: Positive = 50
    executions_without_tool_calls: Positive = 16
