"""Do an execution's rows carry what the admission law chose? Token by token: every path, and every
target with the context that it is trained in."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256

from gyre.core.microstep import TreeBlock
from gyre.core.samples import ExecutionSamples
from gyre.testkit.admission_oracle import Expected
from gyre.testkit.tree_paths import path_of

# A token as it is trained: digest of its context, id, log-probability, version.
Trained = tuple[bytes, int, float, int]


def assert_carried(name: str, expected: Expected, blocks: Sequence[TreeBlock]) -> None:
    """`blocks` hold the admitted paths of execution `name` with their targets, and nothing else."""
    _assert_paths(name, expected, blocks)
    due = Counter(_due(expected))
    found = Counter(trained for block in blocks for trained in _trained(block))
    assert found == due, _first_difference(name, due, found)


def _assert_paths(name: str, expected: Expected, blocks: Sequence[TreeBlock]) -> None:
    """Each shared prefix once, but for what splits repeat."""
    due = Counter(path.token_ids for path in expected.paths)
    found = Counter(
        tuple(block.token_ids[place] for place in path_of(block, leaf))
        for block in blocks
        for leaf in block.leaves
    )
    missing, extra = due - found, found - due
    assert not missing, f"{name}: {missing.total()} admitted paths are in no row"
    assert not extra, f"{name}: {extra.total()} paths in rows were not admitted"
    carried = sum(len(block.token_ids) - block.num_repeated_tokens for block in blocks)
    assert carried == expected.num_unique_tokens, f"{name}: {carried} tokens are carried"


def _due(expected: Expected) -> Iterator[Trained]:
    for path in expected.paths:
        contexts = _contexts(path.token_ids)
        for target in path.targets:
            yield contexts[target.position], target.token, target.logprob, target.version


def _trained(block: TreeBlock) -> Iterator[Trained]:
    """A block's targets, each in the context of its own root path."""
    values = zip(block.behaviour_logprobs, block.versions, strict=True)
    at = dict(zip(block.target_positions, values, strict=True))
    seen: set[int] = set()
    for leaf in block.leaves:
        places = path_of(block, leaf)
        contexts = _contexts([block.token_ids[place] for place in places])
        for place, context in zip(places, contexts, strict=True):
            if place in at and place not in seen:
                seen.add(place)
                yield context, block.token_ids[place], *at[place]


def _contexts(tokens: Sequence[int]) -> list[bytes]:
    """By position: the digest of all tokens before it."""
    digest, found = sha256(), []
    for token in tokens:
        found.append(digest.digest())
        digest.update(array("i", (token,)).tobytes())
    return found


def _first_difference(name: str, due: Counter[Trained], found: Counter[Trained]) -> str:
    missing, extra = due - found, found - due
    words = [f"{name}: {missing.total()} targets are not trained, {extra.total()} are too many"]
    for kind, targets in (("not trained", missing), ("too many", extra)):
        for (_, token, logprob, version), _ in list(targets.items())[:1]:
            words.append(f"{kind}: token {token}, logprob {logprob}, version {version}")
    return "; ".join(words)


def blocks_of(samples: ExecutionSamples) -> list[TreeBlock]:
    """What an execution's samples would be in a micro-step of its own."""
    return [block.of_execution(0) for block in samples.blocks]
