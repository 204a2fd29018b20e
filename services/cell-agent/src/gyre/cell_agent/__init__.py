"""Engine and trainer processes of one node, role switches, weights."""
