"""Matches a request's history against the tokens that are already known, by structure.

| module | holds |
|---|---|
| `encoder` | the port to the renderer: new content to tokens |
| `echoes` | what a client may change and mean the same: the keys of messages |
| `inputs` | what is read between two turns, and the nodes that are known by it |
| `turns` | what was sampled and sent, known by its tool-call ids or its text |
| `reasons` | why a request leaves the path of an earlier one |
| `trail` | where earlier walks stood, for requests that repeat them |
| `matcher`, `walk` | the walk of a request along the tree |
"""

from gyre.core.matching.encoder import CannotBridge, Encoder, Tokens, Tools
from gyre.core.matching.matcher import Matcher
from gyre.core.matching.trail import Trail
from gyre.core.matching.turns import SentTurn
from gyre.core.matching.walk import Opening, Plan, opening_of

__all__ = [
    "CannotBridge",
    "Encoder",
    "Matcher",
    "Opening",
    "Plan",
    "SentTurn",
    "Tokens",
    "Tools",
    "Trail",
    "opening_of",
]
