"""Pure laws: ledger, transitions, staleness, tree, admission, packing."""
