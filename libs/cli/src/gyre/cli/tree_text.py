"""An execution's tree in lines.

A chain's own line stands where it begins; what branches off is drawn to the right of it, and the
child with most below goes on below, at the same depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gyre.cli.tree_labels import Labels, many, num_calls
from gyre.core.tree_chains import Chain
from gyre.core.tree_report import TreeReport

# So many leaves of one kind at one place are told one by one, more in one line.
_MOST_ALIKE = 3


def text_lines(report: TreeReport, roots: Sequence[Chain], *, gather: bool) -> Iterator[str]:
    """The report; gather: leaves of one kind at one place are one line."""
    labels = Labels(report)
    yield from _head(report)
    yield ""
    yield from _admission(report, labels)
    for alike in _gathered(roots, gather):
        yield ""
        yield from _draw(alike, labels, ("", ""), gather)


def _draw(
    alike: Sequence[Chain], labels: Labels, prefix: tuple[str, str], gather: bool
) -> Iterator[str]:
    """prefix: of the first line, and of those below it."""
    lead, rest = prefix
    if len(alike) > 1:
        yield f"{lead}○ {labels.gist(alike)}"
        return
    [chain] = alike
    while True:
        mark = "●" if chain.calls and chain.calls[0].verdict == "trained" else "○"
        yield f"{lead}{mark} {labels.chain(chain)}"
        if not chain.below:
            return
        lead = rest
        for sides in _gathered(chain.below[:-1], gather):
            yield from _draw(sides, labels, (f"{rest}├─ ", f"{rest}│  "), gather)
        chain = chain.below[-1]


def _gathered(siblings: Sequence[Chain], gather: bool) -> list[list[Chain]]:
    """Leaves that are alike together where they are many, everything else by itself."""
    alike: dict[object, list[Chain]] = {}
    for chain in siblings:
        is_leaf = gather and chain.key is not None and not chain.below
        alike.setdefault(chain.key if is_leaf else id(chain), []).append(chain)
    return [
        part
        for group in alike.values()
        for part in ([group] if len(group) > _MOST_ALIKE else [[chain] for chain in group])
    ]


def _head(report: TreeReport) -> Iterator[str]:
    fate, totals = report.fate, report.totals
    of = "" if fate.group is None else f", group {fate.group}, task {fate.task}"
    yield f"execution {fate.execution} of job {fate.job}{of}"
    yield _score(report)
    statuses = _listed(totals.calls)
    over = "sealed" if report.tree.sealed else "not sealed: more may come, this is the tree so far"
    counted = f"{num_calls(totals.calls.total())} ({statuses})" if totals.calls else "no call"
    yield f"{counted}; {over}"
    if report.damaged is not None:
        yield f"damaged: {report.damaged}"
    counts = totals.counts
    yield (
        f"{many(totals.num_roots, 'root')}, {many(counts.message_nodes, 'message node')}, "
        f"{many(counts.num_paths, 'path')} of {counts.path_nodes_min:,} to "
        f"{counts.path_nodes_max:,} of them; {counts.expanded_nodes:,} laid flat"
    )
    yield f"{many(counts.tokens, 'token')}, {counts.expanded_tokens:,} laid flat"
    yield f"sampled: {_listed(totals.sampled_tokens) or 'nothing'}"


def _score(report: TreeReport) -> str:
    fate = report.fate
    if fate.attempt is None:
        return "no score" if fate.out is not None else "not scored yet"
    parts = [f"attempt {fate.attempt} scored {fate.reward:g}"]
    if fate.advantage is not None:
        parts.append(f"advantage {fate.advantage:+.4g}")
    if fate.batch is not None:
        parts.append(f"batch {fate.batch}")
    if fate.micro_step is not None:
        parts.append(f"micro-step {fate.micro_step}")
    return ", ".join(parts)


def _admission(report: TreeReport, labels: Labels) -> Iterator[str]:
    yield _admitted(report)
    for path in report.paths:
        yield (
            f"  path {path.number}: {path.request_role}, {many(path.num_nodes, 'node')}, "
            f"{many(path.num_tokens, 'token')}; carries {many(path.num_targets, 'target')}, "
            f"{path.num_masked:,} masked by earlier paths; ends with {labels.call(path.leaf)}"
        )
    for leaf in report.left_out:
        yield (
            f"  {leaf.reason.replace('_', ' ')}: {leaf.request_role}, "
            f"{many(leaf.num_tokens, 'token')}, {many(leaf.num_unmasked, 'target')} that no "
            f"path carries; ends with {labels.call(leaf.leaf)}"
        )


def _admitted(report: TreeReport) -> str:
    fate, totals = report.fate, report.totals
    if report.attempt is None:
        if fate.micro_step is not None and fate.out is None:
            return "admitted: not known any more, its records are damaged since it was drawn"
        return f"admitted: nothing, {fate.out or 'its records are damaged'}"
    of = f"of attempt {report.attempt}"
    if fate.attempt is None:
        of += ", if it is scored as it is now"
    if not report.paths:
        return f"admitted: nothing {of}: no target could be drawn"
    flat = many(totals.num_path_tokens, "token")
    return (
        f"admitted: {many(len(report.paths), 'path')} {of}; {flat} laid flat, "
        f"{totals.num_carried_tokens:,} as they are trained"
    )


def _listed(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items())
