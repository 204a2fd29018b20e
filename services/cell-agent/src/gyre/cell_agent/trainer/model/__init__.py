"""The policy on one rank of a cell: its layout, its weights, what it computes over a tree."""
