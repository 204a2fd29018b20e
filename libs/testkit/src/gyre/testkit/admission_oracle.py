"""What should be trained of an execution, from its recorded calls: the admission law read word by
word, without the tree, the admission or the samples of `gyre.core`. Slow on purpose: every path is
written out, every draw counts anew.

- Trainable is what a committed, delivered call of the scored attempt sampled, unless its role is
  `other`.
- A path ends at a trainable turn with no trainable turn below it. One that is longer than a row is
  out before anything is drawn.
- The highest class with targets that are not masked; in it one path, drawn with probability
  proportional to its targets that are not masked; those are frozen, the whole path is masked; and
  again, J_max times at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallUndelivered

CLASSES = ("main", "main-summary", "sub-agent", "sub-agent-summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A node's tokens; call: the one that sampled them, None for what the policy read."""

    node: str
    token_ids: tuple[int, ...]
    call: CallRecorded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A token to train. position: on its path. version: of the policy that sampled it."""

    position: int
    token: int
    logprob: float
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPath:
    """A path from root to leaf with the targets that it carries. role: of its last call."""

    role: str
    token_ids: tuple[int, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Of one execution. num_unique_tokens: of the paths, each node once. num_left_out: trainable
    tokens that no path carries. temperature: None without a target."""

    paths: tuple[ExpectedPath, ...]
    num_unique_tokens: int
    num_left_out: int
    num_paths_too_long: int
    temperature: float | None

    @property
    def num_targets(self) -> int:
        return sum(len(path.targets) for path in self.paths)


def expected_of(
    events: Iterable[Body],
    *,
    attempt: int,
    row_tokens: int,
    max_trajectories: int | None,
    seed: int,
    execution: str,
) -> Expected:
    """events: the execution's calls in the order of the log. max_trajectories: None for no cap."""
    paths = _trainable_paths(list(events), attempt)
    read = {piece.node for path in paths for piece in path[:-1]}
    leaves = [path for path in paths if path[-1].node not in read]
    fitting = [path for path in leaves if len(_tokens(path)) <= row_tokens]
    drawn = _draw(fitting, max_trajectories, _seeded(seed, execution), _trainable(paths))
    carried = {piece.node: piece for path, _ in drawn for piece in path}
    expected = tuple(_expected(path, fresh) for path, fresh in drawn)
    sampled = [piece.call for _, fresh in drawn for piece in fresh if piece.call is not None]
    temperatures = {call.temperature for call in sampled}
    assert len(temperatures) <= 1, f"{execution} was sampled at {sorted(temperatures)}"
    return Expected(
        paths=expected,
        num_unique_tokens=sum(len(piece.token_ids) for piece in carried.values()),
        num_left_out=sum(len(path[-1].token_ids) for path in paths)
        - sum(len(call.output_ids) for call in sampled),
        num_paths_too_long=len(leaves) - len(fitting),
        temperature=next(iter(temperatures), None),
    )


def _trainable_paths(events: list[Body], attempt: int) -> list[tuple[Piece, ...]]:
    """From the root to each trainable call's output, in the order of the calls."""
    lost = {event.call for event in events if isinstance(event, CallUndelivered)}
    above: dict[str | None, tuple[Piece, ...]] = {None: ()}
    paths = []
    for call in events:
        if not isinstance(call, CallRecorded):
            continue
        path = above[call.parent]
        for segment in call.segments:
            path = (*path, Piece(node=segment.node, token_ids=segment.token_ids))
            above[segment.node] = path
        path = (*path, Piece(node=call.node, token_ids=call.output_ids, call=call))
        above[call.node] = path
        delivered = call.outcome == "committed" and call.call not in lost
        own = call.attempt == attempt and call.request_role in CLASSES
        if delivered and own and call.output_ids:
            paths.append(path)
    return paths


def _trainable(paths: Iterable[tuple[Piece, ...]]) -> frozenset[str]:
    return frozenset(path[-1].node for path in paths)


def _seeded(seed: int, execution: str) -> random.Random:
    """The job's seed and the execution's name alone decide."""
    digest = sha256(f"admission\x1f{seed}\x1f{execution}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def _draw(
    leaves: list[tuple[Piece, ...]],
    cap: int | None,
    rng: random.Random,
    trainable: frozenset[str],
) -> list[tuple[tuple[Piece, ...], list[Piece]]]:
    """Paths with the pieces that each of them carries, in the order of the draws."""
    masked: set[str] = set()

    def fresh(path: tuple[Piece, ...]) -> list[Piece]:
        return [p for p in path if p.node in trainable and p.node not in masked]

    drawn: list[tuple[tuple[Piece, ...], list[Piece]]] = []
    while cap is None or len(drawn) < cap:
        tickets: list[tuple[Piece, ...]] = []
        for role in CLASSES:
            for path in leaves:
                if _role(path) == role:
                    tickets += [path] * len(_tokens(fresh(path)))
            if tickets:
                break
        if not tickets:
            break
        path = tickets[rng.randrange(len(tickets))]
        drawn.append((path, fresh(path)))
        masked.update(piece.node for piece in path)
    return drawn


def _role(path: tuple[Piece, ...]) -> str:
    call = path[-1].call
    assert call is not None
    return call.request_role


def _expected(path: tuple[Piece, ...], fresh: list[Piece]) -> ExpectedPath:
    targets: list[Target] = []
    carried = {piece.node for piece in fresh}
    start = 0
    for piece in path:
        if piece.node in carried:
            assert piece.call is not None
            targets += _targets(piece.call, start)
        start += len(piece.token_ids)
    return ExpectedPath(role=_role(path), token_ids=tuple(_tokens(path)), targets=tuple(targets))


def _targets(call: CallRecorded, start: int) -> Iterable[Target]:
    versions = {at: span.version for span in call.spans for at in range(span.start, span.end)}
    for at, (token, logprob) in enumerate(zip(call.output_ids, call.output_logprobs, strict=True)):
        yield Target(position=start + at, token=token, logprob=logprob, version=versions[at])


def _tokens(pieces: Iterable[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]
