"""The nodes that cells can be formed from, and how they are linked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from gyre.contracts.section import Positive, Section

NODE = "node"
"""The tightest link class of all: one node's own GPUs."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,80}$")]


class NodeEntry(Section):
    """links: the domain that the node is in, by link class. In a class that it leaves out it is
    alone."""

    name: Name
    gpus: Positive
    links: dict[Name, Name] = Field(default_factory=dict)


class Inventory(Section):
    """link_classes: tightest first, for instance [nvlink, rack, zone]. Nodes of one domain of a
    class reach one another at that class's speed; domains nest, so that a tighter one lies within
    one looser one. Nodes without a domain in common never share a cell."""

    link_classes: tuple[Name, ...] = ()
    nodes: Annotated[tuple[NodeEntry, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_one_things(self) -> Inventory:
        for what, names in (
            ("nodes", [node.name for node in self.nodes]),
            ("link_classes", list(self.link_classes)),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: {twice[0]} is there twice; give each a name of its own")
        if NODE in self.link_classes:
            raise ValueError(f"link_classes: {NODE!r} is always the tightest; leave it out")
        for node in self.nodes:
            unknown = sorted(node.links.keys() - set(self.link_classes))
            if unknown:
                raise ValueError(
                    f"node {node.name}: links has {unknown[0]}, which is not in link_classes"
                )
        return self

    @model_validator(mode="after")
    def _domains_nest(self) -> Inventory:
        """Else the tightest link of two nodes would depend on who else is asked."""
        for tight, loose in zip(self.link_classes, self.link_classes[1:], strict=False):
            around: dict[str, str] = {}
            for node in self.nodes:
                inner, outer = node.links.get(tight), node.links.get(loose)
                if inner is None:
                    continue
                if outer is None:
                    raise ValueError(
                        f"node {node.name}: it is in {tight} {inner}; name its {loose}"
                    )
                if around.setdefault(inner, outer) != outer:
                    raise ValueError(
                        f"{tight} {inner}: its nodes are in {loose} {around[inner]} and {outer}; "
                        f"one domain of {tight} lies within one of {loose}"
                    )
        return self
