"""What became of one execution of a script, and that all of it is in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallRerouted
from gyre.contracts.events.executions import Terminated
from gyre.core.admission import seeded
from gyre.core.causes import causes
from gyre.core.tree import Tree
from gyre.testkit.admission_oracle import expected_of
from gyre.testkit.carried_tokens import assert_carried, blocks_of
from gyre.testkit.draws import draw_samples
from gyre.testkit.harness_script import Play

# Of the packing that every outcome is put to.
_ROW_TOKENS, _SEED = 131_072, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One execution that is over. logs: what the program wrote, the standard output first."""

    end: Terminated
    reward: float
    events: tuple[Body, ...]
    workspace: Path
    logs: tuple[str, str]

    @property
    def calls(self) -> list[CallRecorded]:
        """In the order of the log."""
        return [event for event in self.events if isinstance(event, CallRecorded)]

    @property
    def rerouted(self) -> list[CallRerouted]:
        """In the order of the log."""
        return [event for event in self.events if isinstance(event, CallRerouted)]

    @property
    def roles(self) -> list[str]:
        """Of the calls, in their order."""
        return [call.request_role for call in self.calls]

    @property
    def agents(self) -> set[str | None]:
        """Who asked as a sub-agent."""
        return {call.agent for call in self.calls if call.request_role.startswith("sub-agent")}

    @property
    def forks(self) -> list[str]:
        """Reasons of the calls that did not go on where an earlier one ended, in their order."""
        return [call.fork_reason for call in self.calls if call.fork_reason is not None]

    @property
    def causes(self) -> list[tuple[int, str, int]]:
        """(call, kind, the call that is its cause), calls by their place in the log."""
        place = {call.node: number for number, call in enumerate(self.calls)}
        found = causes(self.tree()).items()
        return [(place[node], cause.kind, place[cause.node]) for node, cause in found]

    def tree(self) -> Tree:
        tree = Tree()
        for event in self.events:
            tree.evolve(event)
        return tree


def assert_recorded_whole(
    outcome: Outcome, play: Play, *, lost: Mapping[str, int] | None = None
) -> None:
    """Every token that the script said is in the tree, once, in a committed call of its own, each
    with its logprob and its version, and would be trained as the admission law says; the script was
    played to its end and knew what to say.

    lost: by cue, how many turns nobody could record, because the proxy was killed in their middle,
    or that are another execution's.
    """
    assert play.surprises == []
    assert play.unplayed() == []
    left = Counter(lost or {})
    scripted = []
    for each in play.played:
        if each.kept == 0 and left[each.cue] > 0:
            left[each.cue] -= 1
        elif each.kept == 0:
            scripted.append(each.whole)
    assert not +left, f"not lost: {+left}"
    assert sorted(call.output_ids for call in outcome.calls) == sorted(scripted)
    assert {call.outcome for call in outcome.calls} == {"committed"}
    targets = outcome.tree().targets()
    assert [tuple(node.token_ids) for node in targets] == [c.output_ids for c in outcome.calls]
    for call in outcome.calls:
        assert len(call.output_logprobs) == len(call.output_ids)
        covered = [index for span in call.spans for index in range(span.start, span.end)]
        assert covered == list(range(len(call.output_ids)))
    for cap in (1, 5, None):
        _assert_packed(outcome, cap)


def _assert_packed(outcome: Outcome, cap: int | None) -> None:
    """The rows of the scored attempt carry what the law says of the recorded calls. cap: J_max."""
    name, attempt = outcome.end.execution, outcome.end.attempt
    expected = expected_of(
        outcome.events,
        attempt=attempt,
        row_tokens=_ROW_TOKENS,
        max_trajectories=cap,
        seed=_SEED,
        execution=name,
    )
    samples = draw_samples(
        outcome.tree(),
        attempt=attempt,
        row_tokens=_ROW_TOKENS,
        max_trajectories=cap,
        rng=seeded(_SEED, name),
    )
    assert samples.num_targets == expected.num_targets
    assert_carried(name, expected, blocks_of(samples))
