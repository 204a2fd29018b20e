"""Checkpoints of a cell: written atomically, kept n, read back to the bit."""
