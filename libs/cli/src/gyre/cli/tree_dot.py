"""An execution's tree as a graph in the DOT language: a box a chain, causes as dashed arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.cli.tree_labels import Labels
from gyre.core.tree_chains import Chain, walk
from gyre.core.tree_report import TreeReport

# Fill of a box by what becomes of its tokens.
_TRAINED, _READ, _LEFT_OUT = "palegreen", "white", "lightgrey"


def dot_lines(report: TreeReport, roots: Sequence[Chain]) -> Iterator[str]:
    """A digraph; boxes are named c0, c1, ... in the order they are drawn."""
    every = [chain for root in roots for chain in walk(root)]
    labels = Labels(report)
    names = {id(chain): f"c{number}" for number, chain in enumerate(every)}
    yield f"digraph {_quoted(report.fate.execution)} {{"
    yield "  rankdir=LR;"
    yield '  node [shape=box, style=filled, fontname="sans-serif"];'
    for chain in every:
        label = _quoted(labels.chain(chain).replace(" · ", "\n"))
        yield f"  {names[id(chain)]} [label={label}, fillcolor={_fill(chain)}];"
    for chain in every:
        for child in chain.below:
            yield f"  {names[id(chain)]} -> {names[id(child)]};"
    owner = {view.node.id: names[id(chain)] for chain in every for view in chain.nodes}
    for view in report.nodes.values():
        if view.cause is not None:
            causing, caused = owner[view.cause.node], owner[view.node.id]
            kind = _quoted(view.cause.kind)
            yield f"  {causing} -> {caused} [style=dashed, constraint=false, label={kind}];"
    yield "}"


def _fill(chain: Chain) -> str:
    verdicts = {view.verdict for view in chain.calls}
    if not verdicts:
        return _READ
    return _TRAINED if "trained" in verdicts else _LEFT_OUT


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
