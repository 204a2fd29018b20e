"""A cell on several nodes: the first node's agent leads, the others' run ranks for it."""
