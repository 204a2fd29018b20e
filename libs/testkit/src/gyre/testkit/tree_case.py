"""The paper's execution f3ad38e5 (Appendix C): the published counts, and contexts that have them.

The paper gives the counts and that the main agent and the catalog sub-agent each compact their
history. What it does not give is chosen here so that every count comes out:

| context | messages on its path | of them shared |
|---|---|---|
| main agent until it compacts | 171 | |
| its summary | 170 | 168 with the one above |
| main agent from the summary on | 293 | 2: the system's text and a reminder |
| catalog sub-agent until it compacts | 196 | |
| its summary | 195 | 193 with the one above |
| catalog sub-agent from the summary on | 238 | 2 |
| four other sub-agents | 53, 110, 130, 160 | 1 each: the sub-agents' system text |

Paths add up to 1,716 message nodes, what is shared to 168 + 2 + 193 + 2 + 4 * 1 = 369.
"""

from __future__ import annotations

from gyre.testkit.branching_calls import Context

EXECUTION = "f3ad38e5"

REQUESTS = 636
MESSAGE_NODES = 1347
CANDIDATE_TRAJECTORIES = 10
PATH_NODES_MIN, PATH_NODES_MAX = 53, 293
EXPANDED_NODES = 1716
REPEATED_NODES = 369
SHARED_PREFIX_MAIN = 168
SHARED_PREFIX_SUBAGENT = 193

# Places in `TREE_CASE`.
MAIN, MAIN_SUMMARY, MAIN_AFTER = 0, 1, 2
CATALOG, CATALOG_SUMMARY, CATALOG_AFTER = 3, 4, 5

_HEAD = ("system", "system", "user")


def _sub_agent(name: str, num_turns: int, num_reminders: int, after: tuple[int, int]) -> Context:
    """A small one, with the catalog sub-agent's system text."""
    return Context(
        role="sub-agent",
        agent=name,
        after=after,
        of=CATALOG,
        num_shared=1,
        opening=("user",),
        num_turns=num_turns,
        num_reminders=num_reminders,
        fork_reason="delegation",
    )


TREE_CASE: tuple[Context, ...] = (
    Context(opening=_HEAD, num_turns=80, num_reminders=9),
    Context(
        role="main-summary",
        after=(MAIN, 79),
        of=MAIN,
        num_shared=SHARED_PREFIX_MAIN,
        opening=("user",),
        num_turns=1,
        fork_reason="compaction",
    ),
    Context(
        after=(MAIN_SUMMARY, 0),
        of=MAIN,
        num_shared=2,
        opening=("user",),
        num_turns=137,
        num_reminders=17,
        fork_reason="compaction",
    ),
    Context(
        role="sub-agent",
        agent="catalog",
        after=(MAIN, 20),
        opening=_HEAD,
        num_turns=92,
        num_reminders=10,
        fork_reason="delegation",
    ),
    Context(
        role="sub-agent-summary",
        agent="catalog",
        after=(CATALOG, 91),
        of=CATALOG,
        num_shared=SHARED_PREFIX_SUBAGENT,
        opening=("user",),
        num_turns=1,
        fork_reason="compaction",
    ),
    Context(
        role="sub-agent",
        agent="catalog",
        after=(CATALOG_SUMMARY, 0),
        of=CATALOG,
        num_shared=2,
        opening=("user",),
        num_turns=112,
        num_reminders=12,
        fork_reason="compaction",
    ),
    _sub_agent("a1", 25, 2, (MAIN, 40)),
    _sub_agent("a2", 52, 5, (MAIN, 60)),
    _sub_agent("a3", 61, 7, (MAIN_AFTER, 30)),
    _sub_agent("a4", 75, 9, (MAIN_AFTER, 90)),
)
